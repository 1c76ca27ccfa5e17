"""What the pages say is there is there."""

import re
import subprocess

from server import ROOT, binary


def spans(text):
    return re.findall(r"`([^`]+)`", text)


def test_settings_and_keys():
    helps = {command: subprocess.run([binary(), command, "--help"], capture_output=True, text=True, check=True).stdout
             for command in ("serve", "pull")}
    options = set(re.findall(r"--[\w-]+", helps["serve"] + helps["pull"]))
    keys = set(re.findall(r"^(?:# )?(\w+) =", (ROOT / "models/tiny-embed/model.toml").read_text(), re.M)) | {"revision"}
    looked_at = 0
    for page in ("from-text-embeddings-inference.md", "from-triton.md"):
        for line in (ROOT / "docs" / page).read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not line.startswith("| ") or len(cells) < 2 or set(cells[1]) <= set("-"):
                continue
            here = cells[1]
            for option in re.findall(r"--[\w-]+", here):
                assert option in options, (page, option)
                looked_at += 1
            if "model.toml" in here:
                named = here[: here.index("model.toml")]
                for span in spans(named):
                    key = re.match(r"(\w+)(?: =|$)", span)
                    if key and key[1] not in ("startup", "on_demand", "manual"):
                        assert key[1] in keys, (page, key[1])
                        looked_at += 1
    assert looked_at >= 40
