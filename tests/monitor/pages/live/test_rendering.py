from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from monitor.facts.accounts import GpuTask
from monitor.facts.gpus import GpuState
from monitor.facts.incidents import Badge, Badges
from monitor.facts.readings import Snapshot
from monitor.gpus.rows.snapshot import Bookings
from monitor.owners import rows as look_rows
from monitor.owners.policy import Look
from monitor.pages import frames, rendering
from monitor.pages.frames import Child, Frame, Region
from monitor.pages.rendering import Renderer
from tests.builders import NOW, gpu, gpu_uuid, host, process, snapshot

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _no_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_registered", {})


@pytest.fixture
def renderer() -> Renderer:
    return Renderer()


def frame(renderer: Renderer, shown: Snapshot, topic: str = "dashboard") -> Frame:
    return renderer.whole([shown], [topic], NOW)


def message(frame: Frame, since: int = 0, topic: str = "dashboard") -> dict[str, Any]:
    text = frame.message(topic, since, NOW.timestamp())
    assert text is not None
    found: dict[str, Any] = json.loads(text)
    return found


def test_figures_alone_travel_without_html(renderer: Renderer) -> None:
    first = frame(renderer, snapshot([gpu(utilization_pct=1.0)]))
    second = frame(renderer, snapshot([gpu(utilization_pct=42.4)]))
    said = message(second, since=first.n)

    # Without a listed process, the shares of a busy GPU are unknown.
    assert said["g"] == [[42, 0, 70, 35, None, None]]
    assert not {"content", "o"} & said.keys()


def test_eight_gpus_without_processes_take_less_than_330_bytes(renderer: Renderer) -> None:
    busy = [gpu(i, utilization_pct=97.0, memory_used_bytes=10**10 * i) for i in range(8)]
    first = frame(renderer, snapshot(busy))
    text = frame(renderer, snapshot(busy)).message("dashboard", first.n, NOW.timestamp())

    assert text is not None
    assert len(text) < 330


def test_only_the_card_that_changed_is_sent(renderer: Renderer) -> None:
    first = frame(renderer, snapshot(3))
    second = frame(renderer, snapshot(3, [process(on=1)]))
    content = message(second, since=first.n)["content"]

    assert f'id="gpu-{gpu_uuid(1)}"' in content
    assert f'id="gpu-{gpu_uuid(0)}"' not in content
    # The frame of the row, with the detail that may be open, stays.
    assert "row-" not in content


def test_a_newcomer_gets_everything(renderer: Renderer) -> None:
    frame(renderer, snapshot(3))
    said = message(frame(renderer, snapshot(3)))

    assert said["since"] == 0
    assert all(f'id="gpu-{gpu_uuid(i)}"' in said["content"] for i in range(3))
    assert said["o"]["g"] == [gpu_uuid(i) for i in range(3)]


def test_who_missed_frames_gets_all_that_changed_in_them(renderer: Renderer) -> None:
    first = frame(renderer, snapshot(3))
    frame(renderer, snapshot(3, [process(on=0)]))
    frame(renderer, snapshot(3, [process(on=0), process(2, on=2)]))
    last = frame(renderer, snapshot(3, [process(on=0), process(2, on=2)]))
    content = message(last, since=first.n)["content"]

    assert f'id="gpu-{gpu_uuid(0)}"' in content
    assert f'id="gpu-{gpu_uuid(2)}"' in content
    assert f'id="gpu-{gpu_uuid(1)}"' not in content


def test_a_gpu_in_trouble_stays_in_its_place(renderer: Renderer) -> None:
    first = frame(renderer, snapshot(2))
    second = frame(renderer, snapshot([gpu(0), gpu(1, state=GpuState.LOST)]))
    said = message(second, since=first.n)

    assert "o" not in said
    assert f'id="gpu-{gpu_uuid(0)}"' not in said["content"]


def test_a_gpu_that_comes_brings_the_whole_board(renderer: Renderer) -> None:
    first = frame(renderer, snapshot(1))
    said = message(frame(renderer, snapshot(2)), since=first.n)

    assert said["o"]["g"] == [gpu_uuid(0), gpu_uuid(1)]
    assert all(f'id="row-{gpu_uuid(i)}"' in said["content"] for i in range(2))


def timeline_of(label: str) -> Region:
    """A region whose children stand in the rows of the board."""

    def children(context: dict[str, Any]) -> list[Child]:
        name = {"timeline": f"tl-{gpu_uuid(0)}"}
        return [Child(name["timeline"], label, "tests/child.html", {"text": label}, gpu_uuid(0))]

    return Region(
        "timeline",
        "monitor/_events.html",
        lambda now: {"events": []},
        children=children,
        row_layers=("monitor/_no_enter.html", "monitor/_no_enter.html"),
    )


def test_children_of_a_region_stand_in_the_rows_and_travel_alone(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = rendering.render_to_string

    def stub(template: str, context: dict[str, Any]) -> str:
        is_child = template == "tests/child.html"
        return f"<i>{context['text']}</i>" if is_child else render(template, context)

    monkeypatch.setattr(rendering, "render_to_string", stub)
    frames.register(timeline_of("before"))
    first = frame(renderer, snapshot(2))
    frames.register(timeline_of("after"))
    said = message(frame(renderer, snapshot(2)), since=first.n)

    row = message(first)["content"].split(f'id="row-{gpu_uuid(0)}"')[1].split("b-detail")[0]
    assert "<i>before</i></div>" in row
    assert 'id="region-timeline"' not in message(first)["content"]
    assert said["content"].count("<hx-partial") == 1
    assert "<i>after</i>" in said["content"]


def test_viewers_who_have_the_same_share_one_text(renderer: Renderer) -> None:
    first = frame(renderer, snapshot(8))
    second = frame(renderer, snapshot(8))

    assert second.message("dashboard", first.n, 1.0) is second.message("dashboard", first.n, 2.0)


def test_no_command_line_is_ever_in_a_frame(renderer: Renderer) -> None:
    shown = snapshot(2, [process(command=("python", "--password=hunter2"))])
    for topic in ("dashboard", "processes", f"gpu:{gpu_uuid()}"):
        text = frame(renderer, shown, topic).message(topic, 0, 0.0)

        assert text is not None
        assert "hunter2" not in text


def test_rows_of_more_than_sixteen_gpus_are_lower(renderer: Renderer) -> None:
    few = message(frame(renderer, snapshot(16)))["content"]
    many = message(frame(renderer, snapshot(17)))["content"]

    assert 'tl board"' in few
    assert 'tl board many"' in many
    assert many.count("data-gpu-row=") == 17


def test_the_rows_of_each_host_stand_below_its_line(renderer: Renderer) -> None:
    shown = [snapshot(1), replace(snapshot(1), host=host(name="other"))]
    content = message(renderer.whole(shown, ["dashboard"], NOW))["content"]

    places = re.findall(r'id="line-(\w+)"|data-gpu-row="([\w/]+)"', content)
    assert [a or b for a, b in places] == ["gpubox", "gpubox/0", "other", "other/0"]


def test_a_gpu_page_gets_its_own_figures_only(renderer: Renderer) -> None:
    topic = f"gpu:{gpu_uuid(1)}"
    shown = snapshot([gpu(0), gpu(1, utilization_pct=7.0)], [process(1), process(2, on=1)])
    said = message(frame(renderer, shown, topic), topic=topic)

    assert said["g"] == [[7, 0, 70, 35, 0, 50]]
    assert said["o"]["p"] == [process(2, on=1).key]


def test_the_dashboard_is_sent_no_figures_of_processes(renderer: Renderer) -> None:
    said = message(frame(renderer, snapshot(1, [process(1)])))

    assert "p" not in said
    assert "p" not in said["o"]


def test_the_digest_changes_with_processes_not_with_figures(renderer: Renderer) -> None:
    def digest(shown: Snapshot) -> str:
        return str(message(frame(renderer, shown, "processes"), topic="processes")["x"])

    one = digest(snapshot(1, [process(sm_pct=1.0)]))

    assert digest(snapshot(1, [process(sm_pct=2.0)])) == one
    assert digest(snapshot(1, [process(sm_pct=1.0), process(9)])) != one


def test_a_problem_and_its_remedy_are_shown_instead_of_cards(renderer: Renderer) -> None:
    shown = snapshot(0, problem="No NVIDIA driver was found.", remedy="Install it.")
    content = message(frame(renderer, shown))["content"]

    assert "No NVIDIA driver was found." in content
    assert "Install it." in content


def test_a_name_that_looks_like_markup_is_text(renderer: Renderer) -> None:
    shown = snapshot([gpu(name="<b>x")], [process(user="<i>eve", program="<script>alert(1)")])
    content = message(frame(renderer, shown))["content"]

    assert "<i>eve" not in content
    assert "<script>" not in content
    assert "<b>x" not in content


class Counter:
    """A region that counts, and fails when told to."""

    def __init__(self) -> None:
        self.count = 1
        self.fails = False
        self.loads = 0

    def load(self, now: datetime) -> dict[str, Any]:
        self.loads += 1
        if self.fails:
            raise ValueError("no")
        return {"events": [SimpleNamespace(at=NOW, text=f"{self.count} steps")]}


@pytest.fixture
def counter() -> Counter:
    counter = Counter()
    frames.register(Region("counter", "monitor/_events.html", counter.load))
    return counter


def test_a_region_is_sent_when_its_version_changed(renderer: Renderer, counter: Counter) -> None:
    first = frame(renderer, snapshot(1))
    same = frame(renderer, snapshot(1))
    counter.count = 2
    other = frame(renderer, snapshot(1))

    assert "content" not in message(same, since=first.n)
    assert 'id="region-counter"' in message(other, since=same.n)["content"]


def test_a_failing_region_keeps_its_last_content(renderer: Renderer, counter: Counter) -> None:
    frame(renderer, snapshot(1))
    counter.fails = True
    said = message(frame(renderer, replace(snapshot(1), seq=2)))

    assert 'id="region-counter"' in said["content"]


def moody(text: str) -> Region:
    return Region(
        "mood",
        "scheduler/_mode.html",
        lambda now: {"mode": {"word": text, "reason": ""}},
        in_head=True,
    )


def test_a_region_of_the_head_travels_to_the_viewers_of_each_page(renderer: Renderer) -> None:
    frames.register(moody("calm"))
    made = renderer.whole([snapshot(1)], ["dashboard", "processes", "head"], NOW)

    for topic in ("dashboard", "processes", "head"):
        assert 'id="region-mood"' in message(made, topic=topic)["content"].replace("&quot;", '"')
    assert not any(part.target == "region-mood" for part in made.boards["dashboard"].parts)


def test_a_page_without_figures_hears_of_changes_alone(renderer: Renderer) -> None:
    frames.register(moody("calm"))
    first = frame(renderer, snapshot(1), "head")
    second = frame(renderer, snapshot(1), "head")
    assert second.message("head", first.n, NOW.timestamp()) is None

    frames.register(moody("alarmed"))
    third = frame(renderer, snapshot(1), "head")
    assert message(third, first.n, "head")["since"] == first.n


def test_readings_are_rendered_without_loading_regions(
    renderer: Renderer, counter: Counter
) -> None:
    first = frame(renderer, snapshot(1))
    counter.count = 2
    second = renderer.frame([snapshot([gpu(utilization_pct=7.0)])], ["dashboard"], NOW)

    assert counter.loads == 1
    assert message(second, since=first.n)["g"][0][0] == 7
    assert "content" not in message(second, since=first.n)


def test_what_is_around_is_worth_a_frame_when_it_changed(
    renderer: Renderer, counter: Counter
) -> None:
    topics = ["dashboard"]
    first = frame(renderer, snapshot(1))
    same = renderer.load_regions(topics, NOW)
    counter.count = 2
    other = renderer.load_regions(topics, NOW)
    second = renderer.frame([snapshot(1)], topics, NOW)

    assert (same, other) == (False, True)
    assert 'id="region-counter"' in message(second, since=first.n)["content"]


def test_a_region_may_bring_the_badges_of_cards(renderer: Renderer) -> None:
    badge = Badge("hog", "warning", 7, "takes all")
    badges = Badges({(gpu_uuid(), 4242): badge}, {gpu_uuid(): badge})
    frames.register(
        Region("hogs", "monitor/_events.html", lambda now: {"events": [], "badges": badges})
    )
    content = message(frame(renderer, snapshot(1)))["content"]

    assert "/incidents/7/" in content


def test_only_parts_with_an_owner_whose_look_changes_are_sent(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_look_of_alice(look: Look) -> None:
        given = {"alice": look, "bob": Look("bo", colour=2)}
        monkeypatch.setattr(look_rows, "_looks", given)
        context = {"events": [], "looks": given}
        frames.register(Region("looks", "monitor/_events.html", lambda now: context))

    shown = snapshot(2, [process(1, user="alice"), process(2, on=1, user="bob")])
    with_look_of_alice(Look("al", colour=1))
    first = frame(renderer, shown)
    same = frame(renderer, shown)
    with_look_of_alice(Look("al", pattern=3))
    content = message(frame(renderer, shown), since=same.n)["content"]

    assert "content" not in message(same, since=first.n)
    assert f'id="gpu-{gpu_uuid(0)}"' in content
    assert f'id="gpu-{gpu_uuid(1)}"' not in content


def model(state: GpuState, use: float, since: datetime = NOW) -> Snapshot:
    return snapshot([gpu(0, state=state, state_since=since, utilization_pct=use)])


def test_a_model_that_answers_and_is_ready_again_sends_its_figures_alone(
    renderer: Renderer,
) -> None:
    first = frame(renderer, model(GpuState.LLM_READY, 0.0, NOW - MINUTE))
    said = message(frame(renderer, model(GpuState.LLM_BUSY, 90.0)), since=first.n)

    assert said["g"][0][0] == 90
    assert "content" not in said


def worked_on(renderer: Renderer, monkeypatch: pytest.MonkeyPatch, **task: Any) -> bool:
    """Whether another frame is due, and the row sent, when this changes of a job on the GPU."""
    job = GpuTask(
        job_ref="7", name="train", owner="alice", progress=0.301, ends_at=NOW, tasks_completed=1
    )
    now = {"tasks": job}
    monkeypatch.setattr(
        renderer, "_load_bookings", lambda: Bookings({gpu_uuid(0): (now["tasks"],)}, {})
    )
    first = frame(renderer, snapshot(1))
    now["tasks"] = replace(job, **task)
    is_due = renderer.load_regions(["dashboard"], NOW)
    said = message(renderer.frame([snapshot(1)], ["dashboard"], NOW), since=first.n)
    assert is_due is ("content" in said)
    return is_due


def test_what_a_row_does_not_show_of_a_job_sends_nothing(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen = {"progress": 0.305, "ends_at": NOW.replace(second=59), "tasks_completed": 2}

    assert not worked_on(renderer, monkeypatch, **unseen)


@pytest.mark.parametrize("seen", [{"progress": 0.31}, {"ends_at": NOW + MINUTE}, {"name": "eval"}])
def test_what_a_row_shows_of_a_job_sends_it(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch, seen: dict[str, Any]
) -> None:
    assert worked_on(renderer, monkeypatch, **seen)
