"""Every format: found out from its first rows, units and quirks by hand."""

import io
import json
from typing import Any

import pytest

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Trace
from scheduler_core.types.errors import InputError
from scheduler_core.workload.traces.data import TraceData
from scheduler_core.workload.traces.reader import read_trace

AZURE_2023 = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n2023-11-16 18:15:51.2224670,879,55"
)
AZURE_2024 = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    b"2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,1\n"
)
MOONCAKE = (
    b'{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0,1,2,3,4,5,6,7,8,9,10,11,12,13]}\n'
    b'{"timestamp": 3000, "input_length": 512, "output_length": 2, "hash_ids": [0]}\n'
)
BURST_6 = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,0,0,0,Conversation log\n118,GPT-4,417,276,693,API log\n"
)
BURST_8 = (
    b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"19000000.25,s1,3.2,ChatGPT,10,20,30,Conversation log\n19000001.5,,1.0,GPT-4,11,21,32,API log\n"
    b"19000002.75,s1,2.5,ChatGPT,40,22,62,Conversation log\n"
)
VIDUR = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n"
SPLITWISE = (
    b"request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    b"0,2,0,1,1,4096,32\n1,2,0,3.5,1,2048,8\n"
)


def chat(own: int, parent: int, at: float, turn: int, tokens: int) -> dict[str, Any]:
    """A line of the Qwen-Bailian form."""
    ids = list(range(own * 1000, own * 1000 + -(-tokens // 16)))
    return {
        "chat_id": own,
        "parent_chat_id": parent,
        "timestamp": at,
        "input_length": tokens,
        "output_length": 132,
        "type": "text",
        "turn": turn,
        "hash_ids": ids,
    }


BAILIAN_ROWS = [chat(55, -1, 61.114, 1, 521), chat(159, 55, 70.5, 2, 700), chat(160, -1, 70.5, 1, 16)]
BAILIAN = "\n".join(map(json.dumps, BAILIAN_ROWS)).encode()

ALL = {
    "azure-2023": AZURE_2023,
    "azure-2024": AZURE_2024,
    "mooncake": MOONCAKE,
    "qwen-bailian": BAILIAN,
    "burstgpt": BURST_6,
    "vidur": VIDUR,
    "splitwise": SPLITWISE,
}


def read(content: bytes, **options: Any) -> TraceData:
    return read_trace(io.BytesIO(content), parse(Trace, {"file": "given", **options}))


def refusal(content: bytes, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(content, **options)
    return str(caught.value)


def columns(data: TraceData) -> tuple[list[int], list[int], list[int]]:
    return list(data.arrivals_ns), list(data.prompts), list(data.outputs)


@pytest.mark.parametrize("name", ALL)
def test_a_format_is_found_out_and_may_be_declared(name: str) -> None:
    found = read(ALL[name])
    assert found.format == name
    assert found.digest == read(ALL[name], format=name).digest
    assert found.attribution


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("declared", ALL)
def test_a_format_declared_wrongly_is_refused(name: str, declared: str) -> None:
    if name != declared:
        message = refusal(ALL[name], format=declared)
        assert message.startswith(f"format: is {declared} (") and f"looks like {name}" in message


@pytest.mark.parametrize("name", ["azure-2023", "burstgpt", "vidur", "splitwise", "azure-2024"])
def test_line_ends_byte_order_mark_and_missing_last_newline_change_nothing(name: str) -> None:
    plain = ALL[name].replace(b"\r\n", b"\n").strip()
    for variant in (plain, plain + b"\n\n", plain.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + plain):
        assert read(variant).digest == read(ALL[name]).digest


def test_azure_2023_by_hand() -> None:
    assert columns(read(AZURE_2023)) == ([0, 4_314_579_000, 4_541_877_000], [374, 396, 879], [44, 109, 55])


def test_azure_2024_takes_rows_without_a_fraction() -> None:
    assert columns(read(AZURE_2024)) == ([0, 990_070_000], [2162, 2399], [5, 1])


def test_mooncake_by_hand() -> None:
    data = read(MOONCAKE)
    assert columns(data) == ([0, 3_000_000_000], [6755, 512], [500, 2])
    assert data.block_size == 512 and data.blocks is not None
    assert (data.blocks.of(0), data.blocks.of(1)) == (tuple(range(14)), (0,))


def test_bailian_by_hand() -> None:
    """Seconds as decimals; chat 159 is the second turn of the conversation that chat 55 began."""
    data = read(BAILIAN)
    assert list(data.arrivals_ns) == [0, 9_386_000_000, 9_386_000_000]
    assert data.block_size == 16 and data.sessions is not None and data.turns is not None
    assert (list(data.sessions), list(data.turns)) == ([0, 0, 1], [1, 2, 1])


def test_burstgpt_by_hand() -> None:
    """Times count from the first row (5 s), the failed call of line 3 is left out and said."""
    data = read(BURST_6)
    assert columns(data) == ([0, 113_000_000_000], [472, 417], [18, 276])
    assert (data.rows, len(data), data.zero_output_rows) == (3, 2, 1)
    assert [(row.line, row.reason) for row in data.rejected] == [
        (3, "no prompt and no output tokens (a failed call): left out")
    ]


def test_burstgpt_with_eight_columns_is_read_by_name() -> None:
    data = read(BURST_8)
    assert columns(data) == ([0, 1_250_000_000, 2_500_000_000], [10, 11, 40], [20, 21, 22])
    assert data.sessions is not None and data.turns is not None
    assert (list(data.sessions), list(data.turns)) == ([0, -1, 0], [0, 0, 1])


def test_zero_output_rules() -> None:
    """An answer that failed may count as one token; a row without a prompt is left out under either rule."""
    rows = BURST_6 + b"120,ChatGPT,9,0,9,Conversation log\n"
    dropped, one = read(rows), read(rows, zero_output="one")
    assert [row.line for row in dropped.rejected] == [3, 5]
    assert [row.line for row in one.rejected] == [3]
    assert (list(one.prompts), list(one.outputs)) == ([472, 417, 9], [18, 276, 1])
    assert dropped.zero_output_rows == one.zero_output_rows == 2
    only = BURST_6.splitlines(keepends=True)
    assert "none of its 1 rows can be played" in refusal(only[0] + only[2])


def test_vidur_never_reads_pd_ratio() -> None:
    """The same lengths with the ratio either way round, or absurd, are the same trace."""
    head = b"arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
    one, two = (read(head + b"0,10,5,15," + ratio + b"\n1.5,20,5,25,4\n") for ratio in (b"2.0", b"nonsense"))
    assert one.digest == two.digest
    assert any("pd_ratio" in rule for rule in one.rules)


def test_splitwise_rows_must_be_single_requests() -> None:
    assert columns(read(SPLITWISE)) == ([0, 2_500_000_000], [4096, 2048], [32, 8])
    assert "line 2: batch_size is '4'; a row must be one request" in refusal(SPLITWISE.replace(b"0,1,1,4", b"0,1,4,4"))


@pytest.mark.parametrize(("unit", "factor"), [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)])
def test_plain_files_in_every_unit(unit: str, factor: int) -> None:
    names = {"arrival": "at", "prompt_tokens": "in", "output_tokens": "out"}
    csv = b"out,extra,at,in\n7,x,1000,70\n8,y,1500,80\n"
    lines = b'{"at": 1000, "in": 70, "out": 7}\n{"out": 8, "in": 80.0, "at": 1.5e3}\n'
    expected = ([0, 500 * factor], [70, 80], [7, 8])
    assert columns(read(csv, columns=names, time_unit=unit)) == expected
    assert columns(read(lines, format="jsonl", columns=names, time_unit=unit)) == expected


def test_plain_files_with_people_sessions_and_blocks() -> None:
    names = {
        "arrival": "t",
        "prompt_tokens": "p",
        "output_tokens": "o",
        "tenant": "who",
        "tier": "class",
        "session": "chat",
        "prefix_blocks": "ids",
    }
    rows = b"t,p,o,who,class,chat,ids\n9,100,5,b,x,c1,4 5 6\n8,40,5,a,x,c1,4\n10,7,5,a,y,,\n"
    data = read(rows, columns=names, time_unit="s", block_size=32)
    assert list(data.prompts) == [40, 100, 7], "sorted by time"
    assert data.out_of_order_rows == 1 and any("sorted by time" in rule for rule in data.rules)
    assert data.blocks is not None and [data.blocks.of(row) for row in range(3)] == [(4,), (4, 5, 6), ()]
    assert data.tenants is not None and [data.tenants.of(row) for row in range(3)] == ["a", "b", "a"]
    assert data.tiers is not None and [data.tiers.of(row) for row in range(3)] == ["x", "x", "y"]
    assert (list(data.sessions or []), list(data.turns or [])) == ([0, 0, -1], [0, 1, 0])


def test_spec_default_columns_are_recognised_and_still_need_a_unit() -> None:
    rows = b"arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,5,5\n"
    message = "time_unit: is missing: say in which unit 'arrival_s' counts (s, ms, us or ns)"
    assert refusal(rows) == message
    assert read(rows, time_unit="s").format == "csv"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (VIDUR, {"time_unit": "ms"}, "time_unit: is ms, but in vidur times are in seconds (s)"),
        (MOONCAKE, {"block_size": 16}, "block_size: is 16, but mooncake has 512-token blocks"),
        (AZURE_2023, {"block_size": 16}, "block_size: is 16, but azure-2023 has no prefix blocks"),
        (b"a,b\n1,2\n", {}, "format: is a CSV file with the columns 'a', 'b', which is none of azure-2023"),
        (b"a;b\n1;2\n", {}, "its columns seem to be separated by ';'"),
        (b'{"a": 1}', {}, "format: is JSON lines with the fields 'a', which is none of"),
        (b"a,b\n1,2\n", {"format": "jsonl", "time_unit": "s"}, "format: is jsonl, but the file has comma-separated"),
        (
            b"a,b\n1,2\n",
            {"format": "csv", "time_unit": "s"},
            "columns: 'arrival_s' is not a column of this file; it has",
        ),
        (
            b"t,p,o,i\n1,2,3,4\n",
            {
                "columns": {"arrival": "t", "prompt_tokens": "p", "output_tokens": "o", "prefix_blocks": "i"},
                "time_unit": "s",
            },
            "block_size: is missing: say how many tokens one prefix block id stands for",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(content: bytes, options: dict[str, Any], message: str) -> None:
    assert message in refusal(content, **options)


# --- Mooncake and Qwen-Bailian share names, not units ----------------------------------------------------------------


def test_mooncake_and_bailian_are_told_apart_with_figures() -> None:
    assert refusal(MOONCAKE, format="qwen-bailian") == (
        "format: is qwen-bailian (times are in seconds (s), one block id is 16 tokens), but the file looks like "
        "mooncake (times are in milliseconds (ms), one block id is 512 tokens); qwen-bailian needs 'chat_id', "
        "'parent_chat_id', 'turn' too"
    )
    assert refusal(BAILIAN, format="mooncake") == (
        "format: is mooncake (times are in milliseconds (ms), one block id is 512 tokens), but the file looks like "
        "qwen-bailian (times are in seconds (s), one block id is 16 tokens)"
    )


def test_bailian_stripped_of_its_chats_is_caught_by_blocks_and_types() -> None:
    """With Mooncake's four fields only, the rows still tell: 521 tokens are 2 blocks of 512, but have 33 ids."""
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    rows = [{name: row[name] for name in names} | {"timestamp": 60 + place} for place, row in enumerate(BAILIAN_ROWS)]
    message = refusal("\n".join(map(json.dumps, rows)).encode())
    assert message.splitlines() == [
        "block_size: 2 of 3 rows do not fit 512-token blocks; 2 of them fit 16-token blocks, as in qwen-bailian (times "
        "are in seconds (s))",
        "line 1: 521 prompt tokens are 2 blocks of 512, but hash_ids has 33 ids",
        "line 2: 700 prompt tokens are 2 blocks of 512, but hash_ids has 44 ids",
    ]
    rows[2]["timestamp"] = 61.5
    assert "line 3: timestamp is 61.5; mooncake counts whole ms" in refusal("\n".join(map(json.dumps, rows)).encode())


def test_mooncake_dressed_as_bailian_is_caught_by_blocks() -> None:
    dressed = [
        json.loads(line) | {"chat_id": place, "parent_chat_id": -1, "turn": 1}
        for place, line in enumerate(MOONCAKE.splitlines())
    ]
    message = refusal("\n".join(map(json.dumps, dressed)).encode())
    assert message.startswith("block_size: 2 of 2 rows do not fit 16-token blocks; 2 of them fit 512-token blocks")
    assert "line 1: 6755 prompt tokens are 423 blocks of 16, but hash_ids has 14 ids" in message


def test_a_hashed_format_without_its_block_ids_must_be_declared() -> None:
    """Without block ids nothing tells milliseconds from seconds, so the unit is the user's word."""
    rows = b"\n".join(b'{"timestamp": %d, "input_length": 9, "output_length": 3}' % at for at in (0, 2500))
    assert "which is none of azure-2023" in refusal(rows)
    data = read(rows, format="mooncake")
    assert (list(data.arrivals_ns), data.blocks, data.block_size) == ([0, 2_500_000_000], None, None)
    assert "needs 'hash_ids', 'chat_id', 'parent_chat_id', 'turn' too" in refusal(rows, format="qwen-bailian")


def test_bailian_conversations_must_be_consistent() -> None:
    twice = [*BAILIAN_ROWS, chat(55, -1, 80.0, 1, 16)]
    assert "line 4: chat_id 55 has come before" in refusal("\n".join(map(json.dumps, twice)).encode())
    text = [BAILIAN_ROWS[0] | {"parent_chat_id": "none"}]
    assert "line 1: parent_chat_id is 'none', which is not a number" in refusal(json.dumps(text[0]).encode())
