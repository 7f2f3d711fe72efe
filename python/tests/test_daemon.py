"""A daemon's figures: recorded under the load of two guests that flood a third one, and of a daemon that runs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fairlane

DATA = Path(__file__).parent / "data"
POLICY = """
control = "{directory}/control.sock"
metrics = "127.0.0.1:0"
metrics_token = "{directory}/token"
link = [{{ name = "lan", rate = "1Gbit/s" }}]
tenant = [{{ name = "red", weight = 300 }}]
[[vif]]
name = "web"
tenant = "red"
socket = "{directory}/web.sock"
early_ack = "stalled"
"""
TOKEN = "a token of the tests"


@pytest.fixture(scope="module")
def daemon(command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a daemon that asks for a token."""
    directory = tmp_path_factory.mktemp("daemon")
    (directory / "policy.toml").write_text(POLICY.format(directory=directory))
    (directory / "token").write_text(TOKEN)
    (directory / "token").chmod(0o600)
    words = [command, "up", str(directory / "policy.toml")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            log = []
            for line in process.stderr:
                log.append(line)
                if address := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
            else:
                raise AssertionError("".join(log))
            yield address[0]
        finally:
            process.kill()


def test_a_snapshot_has_a_row_for_each(daemon: str) -> None:
    recorded = fairlane.read_snapshot(DATA / "snapshot.json")
    assert recorded.time == 20.024990121
    assert list(recorded.vifs.index) == ["web", "batch", "store"]
    assert recorded.vifs.loc["web", "sent_rate"] == 6569002.408697907
    assert list(recorded.vifs["drops.rx_congested"]) == [0, 0, 13]
    assert list(recorded.vifs["tenant"].dropna()) == ["red"] and recorded.vifs["max_rate"].isna().all()
    assert list(recorded.links["uplink.received_bytes"]) == [31220416, 0]
    running = fairlane.read_snapshot(daemon, token=TOKEN)
    assert set(running.vifs.columns) >= set(recorded.vifs.columns) - {"drops.rx_congested", "drops.rx_queue_timeout"}
    assert running.vifs.loc["web", "state"] == "waiting" and running.time > 0
    assert running.tenants.loc["red", "weight"] == 300


def test_a_history_has_figures_and_waits() -> None:
    recorded = fairlane.read_history(DATA / "history.json")
    assert recorded.recent.figures.loc[recorded.recent.figures.index[0], "sent_rate"] == 1201860
    assert len(recorded.day.figures) == 1 and recorded.day.figures.index[0] == pytest.approx(360.0529)
    for steps in (recorded.recent, recorded.day):
        assert list(steps.waits.index) == list(steps.figures.index) == list(steps.rx_waits.index)
        assert steps.waits.shape[1] == 13 and steps.waits.columns[0] == 1.024e-6 and steps.waits.columns[-1] == np.inf
    assert recorded.day.waits.iloc[0, 0] == 9741


def test_metrics_have_a_column_for_each_label(daemon: str) -> None:
    recorded = fairlane.read_metrics(DATA / "metrics.txt")
    sent = recorded.query("metric == 'fairlane_vif_bytes_total' and vif == 'web' and direction == 'sent'")
    assert list(sent["scrape"]) == [0, 1] and list(sent["value"]) == [16384640, 17937280]
    waits = recorded.query("metric == 'fairlane_vif_rx_waiting_seconds_bucket' and vif == 'store'")
    assert set(waits["type"]) == {"histogram"} and float(waits["le"].iloc[-1]) == np.inf
    running = fairlane.read_metrics(daemon, token=TOKEN)
    assert set(running.columns) >= {"scrape", "metric", "type", "value", "vif", "link", "tenant", "direction"}
    assert set(running["metric"]) <= set(recorded["metric"]) | {
        "fairlane_vif_drops_total",
        "fairlane_uplink_drops_total",
    }


def test_a_daemon_s_refusal_is_an_error(daemon: str) -> None:
    with pytest.raises(fairlane.Error, match=r"/metrics: 401 "):
        fairlane.read_metrics(daemon)
    with pytest.raises(fairlane.Error, match=r"/api/v1/history\?vif=none: 404 .*it has no history"):
        fairlane.read_history(daemon, vif="none", token=TOKEN)
    with pytest.raises(fairlane.Error, match=r"whose history\?"):
        fairlane.read_history(daemon, token=TOKEN)
    with pytest.raises(ConnectionError, match="http://127.0.0.1:1/metrics: "):
        fairlane.read_metrics("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("read", "file", "old", "new", "sentence"),
    [
        (fairlane.read_snapshot, "snapshot.json", '"time":', '"hour":', "the key `time` is missing"),
        (fairlane.read_snapshot, "snapshot.json", '"name":"batch"', '"name":7', "vifs[1].name: is 7, must be text"),
        (fairlane.read_snapshot, "snapshot.json", '"vifs":[', '"vifs":[3,', "vifs[0]: is 3, must be an object"),
        (fairlane.read_snapshot, "snapshot.json", "}]}", "}]", "not JSON, or cut short"),
        (fairlane.read_history, "history.json", '"recent"', '"today"', "the key `recent` is missing"),
        (fairlane.read_history, "history.json", '"share":[', '"share":[1,', "recent.share: has"),
        (fairlane.read_history, "history.json", '"waits":[[', '"waits":[["x",', 'recent.waits[0][0]: is "x"'),
        (fairlane.read_history, "history.json", '"waits":[[', '"waits":[[1,', "recent.waits[1]: has 13 elements"),
        (fairlane.read_metrics, "metrics.txt", "# EOF\n", "", "cut short"),
        (fairlane.read_metrics, "metrics.txt", "# EOF", "x x x\n# EOF", "answer 0: not OpenMetrics text"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(
    tmp_path: Path, read: Any, file: str, old: str, new: str, sentence: str
) -> None:
    text = (DATA / file).read_text()
    place = text.rindex(old) if not new or old == "}]}" else text.index(old)
    (tmp_path / file).write_text(text[:place] + new + text[place + len(old) :])
    with pytest.raises(fairlane.Error) as error:
        read(tmp_path / file)
    assert str(error.value).startswith(str(tmp_path / file)) and sentence in str(error.value)
