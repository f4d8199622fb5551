"""Inputs that once ended as 500 or were accepted: each is refused with a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import time
from typing import Any

import pytest
from channels.testing import HttpCommunicator
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from gpucoord_site.asgi import http
from gpucoord_site.http.handler import Utf8Only
from monitor.gpus.rows import closures as availability
from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Event, Gpu, Incident
from monitor.owners import rows
from scheduler.models import Job, TimeWindow
from tests import jobs_made
from tests.builders import gpu_uuid, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]

WINDOW = {"days": [0], "start": "20:00", "end": "22:00"}
TOO_LARGE = "x" * 3_000_000


class Rest:
    """A REST client with a token; answers are (status, JSON)."""

    def __init__(self, user: User) -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = {"authorization": f"Bearer {rows.create_token(user, timezone.now())[1]}"}

    def get(self, path: str) -> tuple[int, Any]:
        answer = self.client.get(f"/api{path}", headers=self.headers)
        return answer.status_code, answer.json()

    def post(self, path: str, body: Any, content_type: str = "application/json") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.client.post(f"/api{path}", data, content_type, headers=self.headers)
        return answer.status_code, answer.json()


@pytest.fixture
def rest(alice: User) -> Rest:
    return Rest(alice)


@pytest.fixture
def operator(root: User) -> Rest:
    return Rest(root)


@pytest.fixture
def incident(db: None) -> Incident:
    monitor_store.record(snapshot(1))
    now = timezone.now()
    return Incident.objects.create(
        key="k", rule="sustained", severity="info", text="GPU 0 is overused", host="gpubox",
        gpu_id=gpu_uuid(0), user="alice", since_at=now, opened_at=now, last_seen_at=now,
    )  # fmt: skip


def fields(answer: dict[str, Any]) -> dict[str, str]:
    return {error["field"]: error["message"] for error in answer["errors"]}


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/what-if/", "/windows/"])
def test_a_body_over_the_limit_is_413(rest: Rest, path: str) -> None:
    status, answer = rest.post(path, {"command": TOO_LARGE})

    assert status == 413
    assert "2.5 MiB" in answer["detail"]


@pytest.mark.parametrize("path", ["/jobs/new/", "/windows/ask/", "/login/", "/mode/"])
def test_a_form_over_the_limit_is_413(
    as_user: Callable[[User], Client], root: User, path: str
) -> None:
    browser = as_user(root)
    browser.raise_request_exception = False

    answer = browser.post(path, f"command={TOO_LARGE}", "application/x-www-form-urlencoded")

    assert answer.status_code == 413
    assert "2.5 MiB" in answer.content.decode()


@pytest.mark.parametrize(
    "moment",
    ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "9999-12-31", "0001-01-01 00:00"],
)
def test_a_begin_outside_the_calendar_is_refused(rest: Rest, moment: str) -> None:
    status, answer = rest.post("/jobs/", {"command": "true", "begin": moment})

    assert status == 422
    assert "begin" in fields(answer)


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize(
    "moment", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00%2B14:00", "2026-03-02T12:00:00"]
)
def test_event_times_outside_the_calendar_or_without_a_zone_are_refused(
    rest: Rest, name: str, moment: str
) -> None:
    status, answer = rest.get(f"/events/?{name}={moment}")

    assert status == 422
    assert "2026-03-02T12:00:00Z" in fields(answer)[name]


@pytest.mark.parametrize(
    "until", ["9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z", "2027-01-01T00:00:00", 1]
)
def test_an_exemption_ends_at_a_time_that_can_be_shown(
    operator: Rest, incident: Incident, until: object
) -> None:
    status, answer = operator.post(f"/incidents/{incident.pk}/exempt/", {"until": until})

    assert status == 422
    assert "until" in fields(answer)


@pytest.mark.parametrize(
    "change",
    [
        {"first_day": "9999-12-31"},
        {"last_day": "9999-12-31"},
        {"first_day": "0001-01-01"},
        {"reason": "\ud800"},
        {"reason": "a\0b"},
        {"start": "20:00:00+02:00"},
        {"start": "20:00Z", "end": "21:00"},
        {"days": []},
        {"days": [7]},
        {"zone": "\ud800"},
        {"gpus": ["\0"]},
    ],
)
def test_a_window_is_refused_in_a_sentence(rest: Rest, change: dict[str, Any]) -> None:
    status, answer = rest.post("/windows/", WINDOW | change)

    assert status == 422
    assert set(fields(answer)) == {next(iter(change))}
    assert not TimeWindow.objects.exists()


def _texts(incident: Incident, job: Job, gpu: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("/jobs/", {"command": "true", "name": "?"}),
        ("/jobs/", {"command": "?"}),
        ("/jobs/", {"argv": ["true", "?"]}),
        ("/jobs/", {"command": "true", "env": {"A": "?"}}),
        ("/jobs/", {"command": "true", "env": {"?": "1"}}),
        ("/jobs/what-if/", {"command": "true", "begin": "?"}),
        ("/windows/", {**WINDOW, "reason": "?"}),
        ("/mode/", {"mode": "automatic", "host": "?"}),
        (f"/gpus/{gpu}/pause/", {"reason": "?"}),
        (f"/incidents/{incident.pk}/acknowledge/", {"explanation": "?"}),
        (f"/incidents/{incident.pk}/close/", {"reason": "?"}),
        (f"/incidents/{incident.pk}/exempt/", {"reason": "?"}),
    ]


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_no_text_of_a_body_holds_nul_or_half_a_character(
    operator: Rest, incident: Incident, root: User, number: int, character: str
) -> None:
    path, body = _texts(incident, jobs_made.waiting(root), gpu_uuid(0))[number]
    text = json.dumps(body).replace("?", json.dumps(f"a{character}b")[1:-1])

    status, answer = operator.post(path, text.encode())

    assert status == 422
    assert fields(answer)


@pytest.mark.parametrize("character", ["%00", "%ED%A0%80"])
@pytest.mark.parametrize(
    "path",
    [
        "/jobs/?owner={}",
        "/events/?gpu={}",
        "/events/?kind={}",
        "/incidents/?person={}",
        "/quota/?user={}",
        "/incidents/?rule=sustained&gpu={}",
    ],
)
def test_no_text_of_an_address_holds_nul_or_half_a_character(
    operator: Rest, path: str, character: str
) -> None:
    status, answer = operator.get(path.format(character))

    # A half of a surrogate pair can't be written in UTF-8; Django reads it as U+FFFD.
    assert status in ({422} if character == "%00" else {200, 422})
    assert status == 200 or answer["detail"]


@pytest.mark.parametrize("character", ["\0", "%ED%A0%80"])
def test_nul_in_a_hold_reason_is_refused(operator: Rest, root: User, character: str) -> None:
    job = jobs_made.waiting(root)

    status, _ = operator.post(f"/jobs/{job.pk}/hold/?reason=a%00b", {})

    assert status == 422


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/jobs/new/", {"command": "true", "name": "a\0b"}),
        ("/jobs/{job}/hold/", {"reason": "a\0b"}),
        ("/gpus/{gpu}/pause/", {"reason": "a\0b"}),
        ("/incidents/{incident}/acknowledge/", {"explanation": "a\0b"}),
        ("/incidents/{incident}/close/", {"reason": "a\0b"}),
        ("/incidents/{incident}/exempt/", {"reason": "a\0b", "scope": "user", "days": "7"}),
        ("/windows/ask/", {"reason": "a\0b"}),
        ("/login/", {"username": "a\0b", "password": "x"}),
    ],
)
def test_no_text_of_a_form_holds_nul(
    as_user: Callable[[User], Client],
    root: User,
    incident: Incident,
    path: str,
    form: dict[str, str],
) -> None:
    browser = as_user(root)
    browser.raise_request_exception = False
    job = jobs_made.waiting(root)
    where = path.format(job=job.pk, gpu=gpu_uuid(0), incident=incident.pk)

    assert browser.post(where, form).status_code == 422
    assert not any("\0" in event.text for event in Event.objects.all())


@pytest.mark.parametrize(
    "path", ["/jobs/?owner=a%00b", "/events/?gpu=%00", "/incidents/?person=%00", "/users/a%00b/"]
)
def test_no_address_of_a_page_holds_nul(
    as_user: Callable[[User], Client], root: User, path: str
) -> None:
    assert as_user(root).get(path).status_code == 422


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_body_is_utf_8(rest: Rest, encoding: str) -> None:
    body = '{"command": "true"}'.encode(encoding)

    assert rest.post("/jobs/", body)[0] == (201 if encoding == "utf-8-sig" else 400)


@pytest.mark.parametrize("charset", ["utf-7", "hex", "unicode_escape", '"UTF-16"', "x", ""])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_in_another_character_set_is_refused(method: str, charset: str) -> None:
    kind = f"multipart/form-data; boundary=B; charset={charset}".encode()
    headers = [(b"host", b"127.0.0.1"), (b"content-type", kind)]
    request = HttpCommunicator(http, method, "/login/?next=a", body=b"x=%00", headers=headers)

    answer = await request.get_response()

    assert answer["status"] == 415
    assert "UTF-8" in json.loads(answer["body"])["detail"]


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", '"utf-8"'])
async def test_a_request_in_utf_8_reaches_the_application(charset: str) -> None:
    reached = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    kind = f"application/x-www-form-urlencoded; charset={charset}".encode()
    await Utf8Only(application)({"headers": [(b"content-type", kind)]}, None, None)

    assert reached


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"command": ' + b"9" * 5000 + b"}",
        b'{"priority": Infinity}',
        b"\xff",
        b"{",
    ],
)
def test_what_is_no_json_is_400(rest: Rest, body: bytes) -> None:
    assert rest.post("/jobs/", body)[0] == 400


@pytest.mark.parametrize("field", ["time_limit", "estimate", "grace", "gpu_memory", "memory",
                                   "begin", "capability", "yield_signal", "on_gpu"])  # fmt: skip
def test_a_long_text_is_refused_before_it_is_read(rest: Rest, field: str) -> None:
    status, answer = rest.post("/jobs/what-if/", {"command": "true", field: "1s" * 100_000})

    assert status == 422
    assert len(fields(answer)[field]) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [("after", ["x" * 1_000_000]), ("time_limit", "٣٠"), ("gpu_memory", "٣٠GiB"),
     ("capability", "٨.٠"), ("begin", "٢٢:٠٠"), ("on_gpu", "٠")],
)  # fmt: skip
def test_numbers_are_written_in_ascii_digits(rest: Rest, field: str, value: object) -> None:
    status, answer = rest.post("/jobs/what-if/", {"command": "true", field: value})

    assert status == 422
    assert field in fields(answer)


@pytest.mark.parametrize(
    "field", ["gpus", "priority", "retries", "after", "cpus", "power", "gpu_share"]
)
def test_the_form_takes_ascii_digits_alone(
    as_user: Callable[[User], Client], alice: User, field: str
) -> None:
    monitor_store.record(snapshot(1))
    form = {"command": "true", "gpus": "1", field: "١"}

    assert as_user(alice).post("/jobs/new/", form).status_code == 422
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "path", ["/jobs/99999999999999999999999/", "/incidents/99999999999999999999999/",
             "/jobs/99999999999999999999999/log/", "/jobs/99999999999999999999999/why/"]
)  # fmt: skip
def test_a_number_beyond_all_rows_is_404(operator: Rest, path: str) -> None:
    assert operator.get(path)[0] == 404


@pytest.mark.parametrize("uuid", ["%00", "a%00b", "%ED%A0%80"])
def test_a_gpu_with_an_impossible_name_is_not_there(operator: Rest, uuid: str) -> None:
    assert operator.post(f"/gpus/{uuid}/pause/", {})[0] in (404, 422)
    assert not availability.on("gpubox")
    assert Gpu.objects.count() == 0


@pytest.mark.parametrize("path", ["/events/", "/", "/hosts/gpubox/", "/gpus/{gpu}/"])
@pytest.mark.parametrize("moment", ["0001-01-01T00:00%2B14:00", "9999-12-31T23:59-14:00"])
def test_pages_leave_out_times_outside_the_calendar(
    as_user: Callable[[User], Client], root: User, path: str, moment: str
) -> None:
    monitor_store.record(snapshot(1))
    query = f"?since={moment}&until={moment}&range=custom"

    assert as_user(root).get(path.format(gpu=gpu_uuid(0)) + query).status_code == 200


def test_a_form_sent_to_rest_by_a_browser_is_refused(
    as_user: Callable[[User], Client], alice: User
) -> None:
    browser = as_user(alice)
    browser.raise_request_exception = False

    answer = browser.post("/api/jobs/", {"command": "true"})

    assert answer.status_code == 400
    assert "JSON" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs/", {"command": "true", "gpu": 1}),
        ("/jobs/what-if/", {"command": "true", "gpu": 1}),
        ("/windows/", {**WINDOW, "holder": "user:1"}),
        ("/mode/", {"mode": "automatic", "hour": 1}),
        ("/gpus/{gpu}/pause/", {"resaon": "x"}),
        ("/incidents/{incident}/acknowledge/", {"reason": "x"}),
        ("/incidents/{incident}/snooze/", {"hours": 1, "days": 1}),
        ("/incidents/{incident}/close/", {"explanation": "x"}),
        ("/incidents/{incident}/exempt/", {"days": 1}),
        ("/jobs/{job}/cancel/?arrray=true", {}),
        ("/jobs/{job}/cancel/?job_id=1", {}),
        ("/jobs/{job}/hold/?why=x", {}),
        ("/jobs/{job}/release/?reason=x", {}),
        ("/gpus/{gpu}/resume/?reason=x", {}),
        ("/jobs/?name=x", {"command": "true"}),
    ],
)
def test_unknown_fields_are_refused_by_every_endpoint(
    operator: Rest, root: User, incident: Incident, path: str, body: dict[str, Any]
) -> None:
    job = jobs_made.waiting(root)
    where = path.format(job=job.pk, gpu=gpu_uuid(0), incident=incident.pk)

    status, answer = operator.post(where, body)

    assert status == 422
    (message,) = fields(answer).values()
    assert message.startswith("There is no such field.")


@pytest.mark.parametrize(
    ("path", "field", "suggestion"),
    [
        ("/jobs/", "gpu", " Did you mean gpus?"),
        ("/idle-templates/none/signals/", "metric", ""),
        ("/idle-templates/none/signals/", "qualty", " Did you mean quality?"),
        ("/incidents/{incident}/snooze/", "hour", " Did you mean hours?"),
        ("/gpus/{gpu}/pause/", "gpus", ""),
    ],
)
def test_only_fields_of_the_same_body_are_suggested(
    operator: Rest, incident: Incident, path: str, field: str, suggestion: str
) -> None:
    _, answer = operator.post(path.format(gpu=gpu_uuid(0), incident=incident.pk), {field: 1})

    assert fields(answer)[field] == f"There is no such field.{suggestion}"


@pytest.mark.parametrize(
    "path",
    ["/jobs/?sate=open", "/jobs/{job}/?x=1", "/jobs/{job}/why/?x=1", "/jobs/{job}/log/?ofset=1",
     "/windows/?stat=asked", "/mode/?host=x", "/throttle/?x=1", "/shares/?user=x",
     "/quota/?owner=x", "/gpus/?host=x", "/processes/?gpu=x", "/events/?user=x",
     "/incidents/?owner=x", "/incidents/{incident}/?x=1"],
)  # fmt: skip
def test_unknown_query_parameters_are_refused(
    operator: Rest, root: User, incident: Incident, path: str
) -> None:
    job = jobs_made.waiting(root)

    status, answer = operator.get(path.format(job=job.pk, incident=incident.pk))

    assert status == 422
    (message,) = fields(answer).values()
    assert message.startswith("There is no such field.")


def test_an_unknown_parameter_is_refused_with_the_nearest_name(rest: Rest) -> None:
    _, answer = rest.get("/jobs/?sate=open")

    assert fields(answer) == {"sate": "There is no such field. Did you mean state?"}


@pytest.mark.parametrize("character", ["\x1b", "\x9b", "\u202e", "\u2066", "\u200b", "\x07"])
@pytest.mark.parametrize("number", [0, 6, 7, 8, 9, 10, 11])
def test_names_and_reasons_hold_no_control_or_format_characters(
    operator: Rest, incident: Incident, root: User, number: int, character: str
) -> None:
    path, body = _texts(incident, jobs_made.waiting(root), gpu_uuid(0))[number]
    text = json.dumps(body).replace("?", json.dumps(f"a{character}b")[1:-1])

    status, answer = operator.post(path, text.encode())

    assert status == 422
    (message,) = fields(answer).values()
    assert f"U+{ord(character):04X}" in message
    assert character not in message


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/jobs/new/", {"command": "true", "name": "a\u202eb"}),
        ("/jobs/{job}/hold/", {"reason": "a\x1bb"}),
        ("/gpus/{gpu}/pause/", {"reason": "a\x1bb"}),
        ("/incidents/{incident}/acknowledge/", {"explanation": "a\x1bb"}),
        ("/incidents/{incident}/close/", {"reason": "a\u202eb"}),
        ("/incidents/{incident}/exempt/", {"reason": "a\x1bb", "scope": "user", "days": "7"}),
        ("/windows/ask/", {"reason": "a\u202eb"}),
        ("/windows/{window}/decide/", {"decision": "approve", "answer": "a\x1bb"}),
    ],
)
def test_names_and_reasons_of_forms_hold_no_control_or_format_characters(
    as_user: Callable[[User], Client],
    root: User,
    incident: Incident,
    path: str,
    form: dict[str, str],
) -> None:
    job = jobs_made.waiting(root)
    window = TimeWindow.objects.create(
        user=root, days=[0], start=time(20), end=time(22), zone="UTC", asked_at=timezone.now()
    )
    where = path.format(job=job.pk, gpu=gpu_uuid(0), incident=incident.pk, window=window.pk)

    answer = as_user(root).post(where, form)

    assert answer.status_code == 422
    assert "U+" in answer.content.decode()
    assert not any("a\x1b" in event.text for event in Event.objects.all())


def test_an_explanation_may_have_several_lines(
    as_user: Callable[[User], Client], root: User, incident: Incident
) -> None:
    as_user(root).post(f"/incidents/{incident.pk}/acknowledge/", {"explanation": "a\r\nb\tc"})

    incident.refresh_from_db()
    assert incident.explanation == "a\r\nb\tc"


@pytest.mark.parametrize(
    "path",
    [
        "/admin/scheduler/timewindow/?asked_at__year=9999",
        "/admin/scheduler/job/?submitted_at__gte=0001-01-01+00:00:00%2B14:00",
        "/admin/monitor/event/?at__gte=9999-12-31+23:59:59-14:00",
    ],
)
def test_filters_of_the_admin_outside_the_calendar_are_refused(
    as_user: Callable[[User], Client], root: User, path: str
) -> None:
    browser = as_user(root)
    browser.raise_request_exception = False

    assert browser.get(path).status_code == 422


@pytest.mark.parametrize(
    ("zone", "day", "clock"),
    [("Asia/Tokyo", "0001-01-01", "00:00"), ("America/Los_Angeles", "9999-12-31", "23:59")],
)
def test_times_of_admin_forms_outside_the_calendar_are_refused(
    as_user: Callable[[User], Client], root: User, zone: str, day: str, clock: str
) -> None:
    browser = as_user(root)
    browser.raise_request_exception = False
    form = {"user": root.pk, "name": "x", "expires_at_0": day, "expires_at_1": clock}

    browser.cookies["timezone"] = zone
    answer = browser.post("/admin/monitor/apitoken/add/", form)

    assert answer.status_code == 422
    assert "outside the possible range" in answer.content.decode()


def test_a_share_is_written_in_ascii_digits(as_user: Callable[[User], Client], alice: User) -> None:
    form = {"holder": f"user:{alice.pk}", "days": ["0"], "start": "20:00", "end": "22:00",
            "zone": "UTC", "kept": "yes", "share_pct": "٥٠"}  # fmt: skip

    assert as_user(alice).post("/windows/ask/", form).status_code == 422
    assert as_user(alice).post("/windows/ask/", form | {"share_pct": "50"}).status_code == 302
