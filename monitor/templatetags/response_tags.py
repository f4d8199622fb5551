"""Template tags: what was done about an incident; whether alerts arrive."""

from __future__ import annotations

from typing import Any

from django import template
from django.db.models import Count, Q

from monitor.models import Channel, Incident, Message
from monitor.pages import responses as found
from monitor.policy.privacy import Viewer

register = template.Library()


@register.inclusion_tag("monitor/_responses.html", takes_context=True)
def responses(context: template.Context, incident: Incident, viewer: Viewer) -> dict[str, Any]:
    """A card with the steps and mails; nothing where there are none."""
    return {"lines": found.lines(incident, viewer), "now": context["now"]}


@register.inclusion_tag("monitor/_channels.html", takes_context=True)
def channels(context: template.Context) -> dict[str, Any]:
    """A card that says where alerts go and whether they arrive, for operators."""
    user = context["request"].user
    if not user.is_staff:
        return {}
    waiting = Count("messages", filter=Q(messages__state=Message.State.WAITING))
    rows = Channel.objects.annotate(waiting=waiting).order_by("name")
    return {"channels": rows, "now": context["now"], "operator": True}
