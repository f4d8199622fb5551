"""Template tags: numbers, bars, times, colours, stored texts, and the responses to an incident.

Times need `now` in the context: pages have it from the site's context, live parts from the hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from django import template
from django.db.models import Count, Q
from django.template import Context
from django.urls import resolve, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts import formats
from monitor.facts.accounts import submitter
from monitor.facts.formats import sentence_parts
from monitor.incidents import pages as incident_pages
from monitor.models import Channel, Incident, Message, Response
from monitor.owners.policy import Viewer
from monitor.owners.rows import look_of
from monitor.pages import cards
from monitor.runtime.pages import switched_off
from monitor.usage.rows.processes import UsageTotals

register = template.Library()
WHY_UNKNOWN = "Unknown: not reported"
WHY_NO_OWNER = "Owner unknown: the process may run in a container or have ended."
WHY_NEVER_MEASURED = "Unknown: never measured"
OWNER_SOURCES = {
    "job": "the job that it belongs to",
    "subuid": "the subordinate uids of its container (/etc/subuid)",
    "runtime": "the account that started its rootless container",
    "mount": "the home folder that its container mounts, which only its owner can open",
    "login": "the account that logged in",
    "uid": "the account that it runs as",
    "unknown": "unknown: a uid inside a container names no user of this host",
}
USE_SOURCES = {
    "accounting": "the driver's accounting",
    "processes_info": "the driver's utilisation per process",
    "process_utilization": "the driver's samples per process",
    "device": "utilisation of the whole GPU (only process on it)",
    "unknown": "none: the driver does not report it",
}

register.filter("gib", formats.gib)
register.filter("shortest_size", formats.shortest_size)
register.filter("percent", formats.percent)
register.filter("watts", formats.watts)
register.filter("celsius", formats.celsius)
register.filter("duration", formats.duration)
register.filter("sig3", formats.sig3)
register.filter("in_gib", cards.in_gib)


# (label, URL name) of the pages in the header, in order. The menu has them and all others.
PAGES = (
    ("Dashboard", "dashboard"),
    ("Jobs", "jobs"),
    ("Submit", "job-new"),
    ("Reports", "reports"),
)
MORE_PAGES = (
    ("Timeline", "timeline"),
    ("Processes", "processes"),
    ("Incidents", "incidents"),
    ("Events", "events"),
    ("Models", "models"),
    ("Batches", "batches"),
    ("Scripts", "scripts"),
    ("Idle work", "idle-work"),
    ("Shares", "shares"),
    ("Time windows", "windows"),
    ("Rules", "rules"),
    ("Mode", "mode"),
    ("Disks", "disks"),
    ("Hosts", "hosts"),
    ("Status", "status"),
    ("Documentation", "docs"),
    ("First job", "welcome"),
)
OPERATORS_PAGES = (("People", "people"), ("Set up", "setup"), ("Admin", "admin:index"))


class PageLink(Struct, frozen=True):
    """A page in the navigation. `current`: "page" on that page, "true" below its address."""

    label: str
    url: str
    is_more: bool = False
    current: str = ""


@register.simple_tag(takes_context=True)
def navigation(context: Context) -> list[PageLink]:
    """The pages that this user may open; at most one is current."""
    request = context["request"]
    pages = [PageLink(label, reverse(name)) for label, name in PAGES]
    further = [(label, name) for label, name in MORE_PAGES if is_there(name)]
    pages += [PageLink(label, reverse(name), is_more=True) for label, name in further]
    if request.user.is_staff:
        pages += [PageLink(label, reverse(name), is_more=True) for label, name in OPERATORS_PAGES]
    containing = [p for p in pages if request.path.startswith(p.url) and p.url != "/"]
    nearest = max(containing, key=lambda p: len(p.url), default=None)
    here = {p.url: "page" for p in pages if p.url == request.path}
    if nearest and not here:
        here = {nearest.url: "true"}
    return [replace(page, current=here.get(page.url, "")) for page in pages]


@register.filter
def is_there(name: str) -> bool:
    """Whether this page exists: the extension that it belongs to is on."""
    return resolve(reverse(name)).func is not switched_off


@register.simple_tag(takes_context=True)
def sort_head(context: Context, key: str, words: str, sort: str, css: str = "") -> SafeString:
    """The head of a column as a link that sorts by it: numbers descending first; again reverses."""
    falls_first = "num" in css.split()
    here = sort.removeprefix("-") == key
    falls = sort.startswith("-")
    query = context["request"].GET.copy()
    query["sort"] = ("" if falls else "-") + key if here else ("-" if falls_first else "") + key
    order = "descending" if falls else "ascending"
    return format_html(
        '<th class="{}" scope="col"{}><a class="sort" href="?{}">{}</a></th>',
        css,
        format_html(' aria-sort="{}"', order) if here else "",
        query.urlencode(),
        words,
    )


@register.filter
def grouped(value: int | None) -> str:
    """A whole number with a narrow space between thousands: "291 809"."""
    return formats.UNKNOWN if value is None else f"{value:,}".replace(",", "\u202f")


@register.filter
def severity_shape(severity: str) -> str:
    """The shape of a badge; neutral for a harmless incident, because green means healthy."""
    return {"error": "failing", "warning": "warning"}.get(severity, "idle")


@register.filter
def user_colour(user: str | None) -> str:
    """The classes of a user's colour or pattern: the same on every page."""
    return look_of(user).css if user else "u-none"


@register.filter
def user_mark(user: str) -> str:
    """One or two letters for a user, where there is no room for the name."""
    return look_of(user).mark


@register.filter
def with_code(text: str) -> SafeString:
    """A text in which `this` is set as code."""
    pieces = [(i % 2, piece) for i, piece in enumerate(text.split("`"))]
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", p) if code else p,) for code, p in pieces)
    )


@register.simple_tag
def owner(user: str | None, agent: str = "") -> SafeString:
    """A user with their colour, as a link to the user's page; without a user: unknown owner.

    agent: of the user, if it submitted the job.
    """
    if user:
        address = reverse("person", args=[user])
        title = format_html(' title="Agent {}"', agent) if agent else ""
        return format_html(
            '<a class="owner {}" href="{}"{}>{}</a>',
            user_colour(user),
            address,
            title,
            submitter(user, agent),
        )
    return format_html('<span class="owner u-none" title="{}">unknown</span>', WHY_NO_OWNER)


@register.simple_tag
def gpu_hours(usage: UsageTotals) -> SafeString:
    """GPU time used, in GPU-hours; small amounts keep three digits."""
    if usage.used_s is None:
        return format_html('<span class="unknown" title="{}">–</span>', WHY_NEVER_MEASURED)
    hours = usage.sm_s / 3600
    return format_html("{}", "<0.001" if 0 < hours < 0.001 else formats.sig3(hours))


@register.simple_tag
def energy(joules: float | None) -> SafeString:
    """Energy as Wh or kWh."""
    if joules is None:
        return format_html('<span class="unknown" title="{}">–</span>', WHY_UNKNOWN)
    hours = joules / 3600
    return format_html(
        "{} {}",
        *((formats.sig3(hours / 1000), "kWh") if hours >= 1000 else (formats.sig3(hours), "Wh")),
    )


@register.filter
def owner_source(source: str) -> str:
    """How the owner of a process is known, in words."""
    return OWNER_SOURCES.get(source, source)


@register.filter
def use_source(source: str) -> str:
    """The source of the usage of a process, in words."""
    return USE_SOURCES.get(source, source)


@register.simple_tag
def figure(value: float | None, slot: int | str, digits: int = 0) -> SafeString:
    """A number that the live feed updates: value `slot` of the enclosing [data-live] element.

    digits 3: three significant digits; 0: a whole number. Pages of many GPUs have thousands of
    them, and numbers and constants of a template need no escaping.
    """
    kind = ' data-d="3"' if digits else ""
    if value is None:
        return SafeString(f'<b class="unknown" data-v="{slot}"{kind} title="{WHY_UNKNOWN}">–</b>')
    text = formats.sig3(value) if digits else f"{value:.0f}"
    return SafeString(f'<b data-v="{slot}"{kind}>{text}</b>')


@register.simple_tag
def bar(value: float | None, top: float | None, slot: int | str, kind: str = "") -> SafeString:
    """A bar from 0 to `top`, hatched if unknown; the number beside it has the same content."""
    is_known = value is not None and bool(top)
    width = min(100.0, 100 * value / top) if is_known and value is not None and top else 0.0
    hatched = "" if is_known else " no-value"
    most = f"{top:.6g}" if top else ""
    # Numbers and constants of a template need no escaping.
    return SafeString(
        f'<svg class="bar {kind}{hatched}" data-v="{slot}" data-max="{most}"'
        f' aria-hidden="true"><rect width="{width:.1f}%" height="100%"/></svg>'
    )


@register.simple_tag(takes_context=True)
def ago(context: Context, moment: datetime | None) -> SafeString:
    """A <time> that reads "3 min ago"; app.js updates it."""
    return _time(context, moment, "ago", " ago")


@register.simple_tag(takes_context=True)
def since(context: Context, moment: datetime | None) -> SafeString:
    """A <time> with the duration until now: "3 min"; app.js updates it."""
    return _time(context, moment, "since", "")


@register.simple_tag(takes_context=True)
def since_short(context: Context, moment: datetime | None) -> SafeString:
    """As `since`, in its largest unit: "3 h" for 3 h 20 min."""
    if moment is None:
        return SafeString("–")
    words = formats.duration(max((context["now"] - moment).total_seconds(), 0))
    return _element(moment, "short", " ".join(words.split(" ")[:2]))


@register.simple_tag(takes_context=True)
def clock(context: Context, moment: datetime | None) -> SafeString:
    """A <time> as a clock time, with the day unless that is today.

    app.js converts it to the viewer's time zone.
    """
    if moment is None:
        return SafeString("–")
    here, today = _local(moment), _local(context["now"])
    return _element(moment, "clock", here.strftime(_clock_form(here, today, "%H:%M:%S")))


def _clock_form(here: datetime, today: datetime, of_today: str) -> str:
    """The format of a time: with its day unless that is today, and with another year."""
    if here.date() == today.date():
        return of_today
    return "%-d %b %H:%M" if here.year == today.year else "%-d %b %Y %H:%M"


@register.simple_tag(takes_context=True)
def minute(context: Context, moment: datetime | None) -> SafeString:
    """As `clock`, without seconds: for times that are estimates."""
    if moment is None:
        return SafeString("–")
    here, today = _local(moment), _local(context["now"])
    return _element(moment, "minute", here.strftime(_clock_form(here, today, "%H:%M")))


@register.simple_tag
def stamp(moment: datetime, text: str = "") -> SafeString:
    """A <time> as "2026-03-02 22:00", for tables that are read across days.

    `text` replaces the viewer's zone until times.js has converted it.
    """
    return _element(moment, "stamp", text or f"{_local(moment):%Y-%m-%d %H:%M}")


@register.filter
def unbroken(text: str) -> str:
    """With hyphens at which no line breaks: GPU-h."""
    return text.replace("-", "\N{NON-BREAKING HYPHEN}")


@register.simple_tag
def weekday(moment: datetime | None) -> SafeString:
    """A <time> as "Mon 23 Nov 01:00"; app.js converts it to the viewer's time zone."""
    if moment is None:
        return SafeString("–")
    return _element(moment, "weekday", weekday_words(moment, timezone.get_current_timezone()))


def weekday_words(moment: datetime, zone: tzinfo) -> str:
    """As "Mon 23 Nov 01:00", with the year if it is not the current one."""
    local = moment.astimezone(zone)
    year = "" if local.year == timezone.now().astimezone(zone).year else f" {local.year}"
    return f"{local:%a} {local.day} {local:%b}{year} {local:%H:%M}"


@register.simple_tag(takes_context=True)
def until(context: Context, moment: datetime | None) -> SafeString:
    """A <time> that reads "in 19 h"; app.js updates it."""
    if moment is None:
        return SafeString("–")
    seconds = max((moment - context["now"]).total_seconds(), 0)
    return _element(moment, "in", f"in {formats.duration(seconds)}")


def _time(context: Context, moment: datetime | None, kind: str, suffix: str) -> SafeString:
    if moment is None:
        return SafeString("–")
    seconds = max((context["now"] - moment).total_seconds(), 0)
    return _element(moment, kind, formats.duration(seconds) + suffix)


def _element(moment: datetime, kind: str, text: str) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{}" data-time="{}">{}</time>',
        moment.isoformat(timespec="seconds"),
        moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        kind,
        text,
    )


def _local(moment: datetime) -> datetime:
    return moment.astimezone(timezone.get_current_timezone())


@register.inclusion_tag("monitor/_responses.html", takes_context=True)
def responses(context: template.Context, incident: Incident, viewer: Viewer) -> dict[str, Any]:
    """A card with the enforcement steps and mails; empty if there are none.

    It looks again soon while a step is planned, such as the signal that an operator requested.
    """
    lines = incident_pages.response_lines(incident, viewer)
    return {
        "lines": lines,
        "is_due": any(line.state == Response.State.PLANNED for line in lines),
        "now": context["now"],
        "request": context["request"],
    }


@register.inclusion_tag("monitor/_channels.html", takes_context=True)
def channels(context: template.Context) -> dict[str, Any]:
    """A card for operators: the alert channels and whether messages arrive."""
    user = context["request"].user
    if not user.is_staff:
        return {}
    waiting = Count("messages", filter=Q(messages__state=Message.State.WAITING))
    rows = Channel.objects.annotate(waiting=waiting).order_by("name")
    return {"channels": rows, "now": context["now"], "operator": True}


@register.filter
def with_times(text: str) -> SafeString:
    """A stored text with its moments in the viewer's zone, and `this` set as code.

    No line breaks between a number and its percent sign.
    """
    unbroken = text.replace(" %", "\N{NO-BREAK SPACE}%")
    parts = sentence_parts(unbroken, timezone.now())
    return format_html_join(
        "", "{}", ((with_code(p) if isinstance(p, str) else weekday(p),) for p in parts)
    )


@register.simple_tag
def times_title(text: str, more: str = "", until: datetime | None = None) -> SafeString:
    """A title attribute with this text and, if given, `more` and the end of the state.

    times.js shows its times in the viewer's zone, with UTC behind them.
    """
    parts = list(sentence_parts(text, timezone.now()))
    if until is not None:
        parts += [f" {more} ", until, "."]
    return _title(parts)


def _title(parts: Sequence[str | datetime]) -> SafeString:
    utc = [f"{weekday_words(part, UTC)} UTC" for part in parts if isinstance(part, datetime)]
    if not utc:
        return format_html(' title="{}"', "".join(map(str, parts)))
    zone = timezone.get_current_timezone()
    words = "".join(part if isinstance(part, str) else weekday_words(part, zone) for part in parts)
    template = "".join(
        part if isinstance(part, str) else f"{{weekday:{part.isoformat()}}}" for part in parts
    )
    form = ' title="{} ({})" data-title="{}" data-utc="{}"'
    return format_html(form, words, ", ".join(utc), template, ", ".join(utc))
