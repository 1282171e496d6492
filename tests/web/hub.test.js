import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { embeddedSource, Hub, streamSource } from '../../assets/web/core/hub.js';
import { HEAD, LOOK, MESSAGE, STATE, STEP, cell } from './small_messages.js';
/** @import { RunMessage, ShownStep, TokenLook } from '../../assets/web/messages.d.ts' */

/** @type {ShownStep['context']} */
const CONTEXT = [['draft', 'tiny']];
/** @param {number} index @returns {TokenLook} */
const look = (index) => ({ ...LOOK, title: [`of step ${index}`] });

// Steps of three tokens each; the one at `cut` has a rejected token.
/** @param {number} count @returns {ShownStep[]} */
const steps = (count, cut = 3) => Array.from({ length: count }, (_, index) => ({
  ...STEP, index, has_rejected: index === cut, focus: '1', cells: [cell('0'), cell('1')], last: cell('last'),
  looks: { 0: LOOK, 1: look(index), last: LOOK }, ...(index ? {} : { sentence: ['K is ', '4'], context: CONTEXT }),
}));
/** @param {Partial<RunMessage>} more @returns {RunMessage} */
const whole = (count = 7, more = {}) => ({ ...MESSAGE, head: { ...HEAD, recorded: true }, steps: steps(count), total: count, end: { reason: 'length', words: '', next: [] }, ...more });
/** @param {number} from @param {number} until @param {Partial<RunMessage>} more @returns {RunMessage} */
const part = (from, until, more = {}) => ({ ...MESSAGE, from, ...(from ? {} : { head: HEAD }), steps: steps(7).slice(from, until), total: until, state: STATE, ...more });
const later = () => new Promise((done) => { setImmediate(done); });

// A hub, with what it asked for; `answers` by the step that is asked from.
function started(answers = {}) {
  const pulls = [], hub = new Hub({ start() {}, pull: async (request) => { pulls.push(request); return answers[request.from] || null; } });
  return { hub, pulls };
}
const shown = (hub) => hub.steps.map(({ index }) => index);

function timed(work) {
  mock.timers.enable({ apis: ['setTimeout'] });
  const tick = (milliseconds) => { for (let passed = 0; passed < milliseconds; passed += 10) mock.timers.tick(10); };   // one may set another
  try { work(tick); } finally { mock.timers.reset(); }
}

test('overlapping increments give every step once', () => {
  const { hub } = started();
  for (const [from, until] of [[0, 2], [0, 2], [1, 4], [4, 7], [0, 7]]) hub.take(part(from, until));
  assert.deepEqual(shown(hub), [0, 1, 2, 3, 4, 5, 6]);
});

test('a hole is pulled from where it begins', async () => {
  const { hub, pulls } = started({ 2: part(2, 7) });
  hub.take(part(0, 2));
  hub.take(part(5, 7));
  await later();
  assert.deepEqual(shown(hub), [0, 1, 2, 3, 4, 5, 6]);
  assert.deepEqual(pulls, [{ run: 'run', from: 2 }]);
});

test('a stage that comes late pulls the whole run', async () => {
  const { hub, pulls } = started({ 0: part(0, 7) });
  hub.take(part(6, 7));
  await later();
  assert.deepEqual(shown(hub), [0, 1, 2, 3, 4, 5, 6]);
  assert.deepEqual(pulls.at(-1), { run: 'run', from: 0 });
});

test('a hole that cannot be filled is asked for once per message', async () => {
  const { hub, pulls } = started();
  hub.take(part(3, 5));
  await later();
  assert.deepEqual([pulls.length, hub.steps.length], [1, 0]);
});

test('an answer for a run that has left the stage is not taken', async () => {
  const { hub } = started({ 2: part(2, 7) });
  hub.take(part(0, 2));
  hub.take(part(5, 7));
  hub.take({ ...whole(3), run: 'other' });
  await later();
  assert.deepEqual([hub.run, hub.steps.length], ['other', 3]);
});

test('a new run clears everything of the old one', () => {
  const { hub } = started();
  hub.take(whole());
  hub.pin(0, '0');
  hub.take({ ...whole(2), run: 'other' });
  assert.deepEqual([hub.run, hub.steps.length, hub.cursor, hub.pinned], ['other', 2, 2, null]);
});

test('rubbish from either source changes nothing', () => {
  for (const value of ['', 'null', '{', '{"run": 7}', '{"run": ""}', '[]', null, undefined]) {
    for (const source of [embeddedSource(value), streamSource({ props: { value }, watch() {} })]) {
      const hub = new Hub(source);
      hub.start();
      assert.equal(hub.run, null, String(value));
    }
  }
});

test('what is said of a step is carried on while nothing changes', () => {
  const { hub } = started();
  hub.take(whole());
  assert.deepEqual(hub.steps[6].sentence, ['K is ', '4']);
  assert.deepEqual(hub.steps[6].context, [['draft', 'tiny']]);
});

test('the first rejection is pinned without a click, and only the first', () => {
  const { hub } = started();
  hub.take(whole());
  assert.deepEqual(hub.pinned, { step: 3, ref: '1' });
  hub.release();
  hub.seek(1);
  hub.last();
  assert.equal(hub.pinned, null);
});

/** @type {RunMessage['end']} */
const ENDED = { reason: 'eos', words: 'done', next: [{ does: 'pin', words: ['Why was ', 'it', ' rejected?'], at: { step: 5, ref: '1' } }] };
/** @type {RunMessage['state']} */
const PAUSED = { ...STATE, name: 'paused' };

test('who makes single steps is told of each, and a rejection is pinned again once the run goes on', () => {
  const { hub } = started(), make = (from, cut) => {
    hub.take({ ...part(from, from + 1), steps: steps(10, cut).slice(from, from + 1), total: from + 1 });
    hub.take(part(from + 1, from + 1, { state: PAUSED }));
  };
  for (const [from, cut] of [[0, 0], [1, 9], [2, 2], [3, 9]]) {
    make(from, cut);
    assert.deepEqual(hub.selected(), { step: from, ref: '1' });
  }
  hub.take({ ...part(4, 7), steps: steps(7, 5).slice(4), state: STATE });
  hub.take(part(7, 7, { state: PAUSED }));
  assert.deepEqual(hub.pinned, { step: 5, ref: '1' });
  hub.take({ ...part(7, 8), steps: steps(10, 9).slice(7, 8), total: 8, state: PAUSED });
  assert.deepEqual(hub.pinned, { step: 5, ref: '1' }, 'a step that was under way as the run was paused');
  hub.seek(7);
  make(8, 9);
  assert.deepEqual(hub.pinned, { step: 5, ref: '1' }, 'whoever looks back reads on');
  hub.last();
  hub.pin(2, '0');
  make(9, 9);
  assert.deepEqual(hub.pinned, { step: 2, ref: '0' }, 'what a person chose stays');
});

test('a run of single steps explains at its end what tells most', () => {
  const { hub } = started();
  for (let from = 0; from < 6; from += 1) {
    hub.take(part(from, from + 1));
    hub.take(part(from + 1, from + 1, { state: PAUSED }));
  }
  hub.take(part(6, 7, { state: { ...STATE, name: 'finished' }, end: ENDED }));
  assert.deepEqual(hub.pinned, { step: 5, ref: '1' });
});

/** @type {[(hub: Hub) => void, RunMessage['end']['next'][0]['at']][]} */
const DONE_BEFORE = [[() => {}, { step: 5, ref: '1' }], [(hub) => hub.pin(2, '0'), { step: 2, ref: '0' }], [(hub) => hub.release(), null], [(hub) => hub.seek(4), { step: 3, ref: '1' }]];

test('a run that was watched to its end explains the rejection that tells most, unless a person chose a token', () => {
  for (const [act, place] of DONE_BEFORE) {
    const { hub } = started();
    hub.take(part(0, 7));
    act(hub);
    hub.take(part(7, 7, { total: 7, state: { ...STATE, name: 'finished' }, end: ENDED }));
    assert.deepEqual(hub.pinned, place);
  }
  const { hub } = started();
  hub.take(whole(7, { end: ENDED }));
  assert.deepEqual(hub.pinned, { step: 3, ref: '1' }, 'a recorded run is as it was found');
});

test('hovering looks, and leaving returns to the pin', () => {
  const { hub } = started();
  hub.take(whole());
  hub.pin(5, '1');
  hub.hoverStep(4);
  assert.deepEqual(hub.selected(), { step: 4, ref: '1' });
  hub.hover(null);
  assert.deepEqual(hub.look(), look(5));
});

test('the arrow keys go along the tokens of a step and over its ends, never beyond what is shown', () => {
  const { hub } = started();
  hub.take(whole());
  hub.seek(4);
  hub.pin(2, '1');
  const at = () => [hub.pinned.step, hub.pinned.ref];
  for (const [by, expected] of [[1, [2, 'last']], [1, [3, '0']], [-1, [2, 'last']]]) {
    hub.moveToken(by);
    assert.deepEqual(at(), expected);
  }
  hub.pin(3, 'last');
  hub.moveToken(1);
  hub.moveStep(1);
  assert.deepEqual(at(), [3, 'last']);
  hub.moveStep(-1);
  assert.deepEqual(at(), [2, '1']);
});

test('the player shows any moment without a request', () => {
  const { hub, pulls } = started();
  hub.take(whole());
  /** @type {['first' | 'forward' | 'back' | 'last', number][]} */
  const moves = [['first', 1], ['forward', 2], ['forward', 3], ['back', 2], ['last', 7], ['forward', 7], ['first', 1], ['back', 1]];
  for (const [name, cursor] of moves) {
    hub[name]();
    assert.equal(hub.cursor, cursor, name);
  }
  assert.deepEqual(pulls, []);
});

test('a paused player stays while the run goes on', () => {
  const { hub } = started();
  hub.take(part(0, 4));
  hub.back();
  hub.take(part(4, 7));
  assert.deepEqual([hub.cursor, hub.steps.length, hub.following], [3, 7, false]);
  hub.last();
  assert.deepEqual([hub.cursor, hub.following], [7, true]);
});

test('a first visit is slow for three steps, then at normal pace, and stops at the end', () => timed((tick) => {
  const { hub } = started(), cursors = [];
  hub.take(whole(7, { play: true }));
  for (const wait of [2_250, 2_250, 2_250, 260, 260]) {
    cursors.push(hub.cursor);
    tick(wait);
  }
  assert.deepEqual([...cursors, hub.cursor], [1, 2, 3, 4, 5, 6]);
  tick(10_000);
  assert.deepEqual([hub.cursor, hub.playing], [7, false]);
}));

test('a live run that begins meanwhile takes the stage', () => timed((tick) => {
  const { hub } = started();
  hub.take(whole(7, { play: true }));
  hub.take({ ...MESSAGE, run: 'live', steps: [], state: { ...STATE, name: 'queued' } });
  tick(9_000);
  assert.deepEqual([hub.run, hub.steps.length, hub.playing, hub.isLive()], ['live', 0, false, true]);
  hub.take({ ...part(0, 2), run: 'live' });
  tick(9_000);
  assert.deepEqual([hub.cursor, hub.following, hub.playing], [2, true, false]);
}));

test('a replay that follows another keeps its own pace', () => timed((tick) => {
  const { hub } = started();
  hub.take(whole(7, { play: true }));
  tick(1_000);
  hub.take({ ...whole(7, { play: true }), run: 'other' });
  tick(2_000);
  assert.deepEqual([hub.run, hub.cursor], ['other', 1]);
}));

test('a message that comes twice does not start the replay again', () => timed(() => {
  const { hub } = started();
  hub.take(whole(7, { play: true }));
  hub.last();
  hub.take(whole(7, { play: true }));
  assert.deepEqual([hub.cursor, hub.playing], [7, false]);
}));

test('a run that is found whole shows the place that is explained, not its end', () => {
  const { hub } = started(), seen = [];
  hub.on('select', (detail) => seen.push(detail?.how));
  hub.take(whole());
  assert.deepEqual([hub.spot, seen.at(-1)], [3, 'found']);
});
