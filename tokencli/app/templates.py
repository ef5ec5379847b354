"""A chat template that was asked for: by name, or as a file."""

from tokencli.engine.known_templates import TEMPLATES
from tokencli.errors import UsageError
from tokencli.paths import typed


def template_source(wanted: str) -> str:
    """The template's Jinja text. Raises UsageError for what is neither a known name nor a readable file."""
    if wanted in TEMPLATES:
        return TEMPLATES[wanted]
    try:
        return typed(wanted).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        known = ", ".join(TEMPLATES)
        raise UsageError(f"--template {wanted} is no known template and no readable file", f"known templates: {known}") from None
