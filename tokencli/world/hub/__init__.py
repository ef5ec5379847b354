"""The hub: what a repository holds, the first bytes of a file, whole files, and the cache that other tools use too.

Knows huggingface_hub and its cache's layout; knows nothing of what is in a file, and asks the network only to fetch.
"""

from tokencli.world.hub.api import Hub
from tokencli.world.hub.cache import Cache, cache_folder

__all__ = ["Cache", "Hub", "cache_folder"]
