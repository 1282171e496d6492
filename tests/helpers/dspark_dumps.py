"""Records of DSpark's decisions in the two forms that SGLang writes: lines of a log, and the answer of /server_info."""

import json

GAMMA = 3
A, B = "gsm8k::0007::r0", "b"


def decision(rid, prefix, verify_len, correct_drafts, draft_tokens, bonus_token, confidence=None):
    """One request in one step, as a line of the log holds it."""
    told = {
        "rid": rid,
        "req": 4,
        "prefix": prefix,
        "verify_len": verify_len,
        "acc_len": correct_drafts + 1,
        "correct_drafts": correct_drafts,
        "cap_trim": 0,
        "draft_tokens": draft_tokens,
        "bonus_token": bonus_token,
    }
    if confidence is None:
        return told
    survival = [round(confidence[0] * x, 4) for x in (1, confidence[1], confidence[1] * confidence[2])]
    return told | {"confidence": confidence, "survival": survival}


ROUNDS = [
    [decision(A, 100, 2, 1, [11, 12, 13], 7, [0.9, 0.8, 0.5]), decision(B, 50, 4, 3, [21, 22, 23], 8)],
    [decision(A, 102, 4, 1, [14, 15, 16], 9, [0.9, 0.25, 0.5])],
    [decision(A, 104, 1, 0, [17, 18, 19], 10, [0.3, 0.8, 0.5])],
]
"""Of A: a bonus behind one token that was checked; a rejection; a step in which nothing was checked."""


def line(reqs, number=0, **more):
    record = {
        "forward_ct": 42 + number,
        "bs": len(reqs),
        "gamma": GAMMA,
        "mode": "compact",
        "budget": 5,
        "lag_steps": 2,
        "num_verify_tokens": sum(each["verify_len"] for each in reqs),
        "avg_verify_len": 3.0,
        "reqs": reqs,
        **more,
    }
    written = json.dumps(record, separators=(",", ":"))
    return f"[2026-08-01 10:00:0{number} TP0] DSPARK_DEBUG_MAIN_OUTPUT={written}\n"


def log(rounds=ROUNDS):
    """A part of a server's log."""
    other = "[2026-08-01 10:00:00 TP0] Decode batch, #running-req: 2, accept len: 2.00\n"
    return "".join(other + line(reqs, number) for number, reqs in enumerate(rounds)).encode()


def info_record(rounds=ROUNDS, **more):
    """`dspark_info_record`: two fields have other names, and defaults are left out."""
    records = []
    for number, reqs in enumerate(rounds):
        named = [{"req_pool_index": each["req"], "prefix_len": each["prefix"], **each} for each in reqs]
        for each in named:
            del each["req"], each["prefix"]
        records.append({"forward_ct": 42 + number, "bs": len(reqs), "mode": "compact", "reqs": named})
    told = {"mode": "compact", "gamma": GAMMA, "verify_num_draft_tokens": GAMMA + 1, "components": ["core", "reqs"]}
    return {**told, "records": records, "simulate_acc_len": None, **more}


def server_info(rounds=ROUNDS, **more):
    """The answer of GET /server_info, as a tool writes it to a file."""
    states = [{"last_gen_throughput": 120.5, "dspark_info_record": info_record(rounds, **more)}]
    return json.dumps({"model_path": "TARGET", "internal_states": states}, indent=2).encode()
