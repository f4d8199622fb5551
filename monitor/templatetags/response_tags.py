"""Template tag: what was done about an incident."""

from __future__ import annotations

from typing import Any

from django import template

from monitor import responses as found
from monitor.models import Incident
from monitor.policy.privacy import Viewer

register = template.Library()


@register.inclusion_tag("monitor/_responses.html", takes_context=True)
def responses(context: template.Context, incident: Incident, viewer: Viewer) -> dict[str, Any]:
    """A card with the steps and mails; nothing where there are none."""
    return {"lines": found.lines(incident, viewer), "now": context["now"]}
