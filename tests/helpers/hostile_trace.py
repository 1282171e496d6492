"""A trace that is hostile in every string."""

from dataclasses import replace

from specviz.trace import Trace
from tests.helpers import traces

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)><!--<script>"


def evil_trace():
    """Every text that a trace's maker chooses is an attack."""
    made = traces.Builder([EVIL.encode(), b" a", b"</template>", b" b"], seed=7)
    changed = {"target": EVIL, "draft_model": EVIL, "k_policy": EVIL, "method": EVIL, "rule": EVIL}
    trace = made.chain(3, 1, changed=changed, evidence={"scores": [EVIL], EVIL: EVIL}).finish()
    header, models, *rest = trace.events()
    prompt = replace(header.prompt, text=EVIL, tokens=())
    header = replace(header, specviz=EVIL, created=EVIL, prompt=prompt, request={"method": EVIL, "prompt": EVIL})
    models = replace(models, target=replace(models.target, name=EVIL))
    return Trace([header, models, *rest])
