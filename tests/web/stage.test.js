// The stage shows what was sent, marks one selection in all its views, and asks for nothing while it is played.
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { all, fire, later } from './dom.js';
import { labelOf } from '../../assets/web/core/palette.js';
import { alone, keeping, live, part, run, RUNNING, sent, staged } from './messages.js';

const place = ({ dataset }) => [Number(dataset.step), dataset.ref];
const status = (node) => /sv-is-(\w+)/.exec(node.className)[1];
const pieces = (stage) => stage.find('.sv-text .sv-piece').map((each) => [status(each), ...place(each)]);
const piecesOf = (steps) => steps.flatMap(({ index, pieces: all }) => all.map(([, kind, ref]) => [kind, index, ref]));
const percent = (stage, selector, side) => stage.find(selector).map(({ style }) => parseFloat(style[side]));
const titleOf = ({ steps }, step, ref) => steps[step].looks[ref].title.join('');
const piece = (step, ref) => `.sv-piece[data-step=${step}][data-ref=${ref}]`;
const cell = (step, ref) => `.sv-cell[data-step=${step}][data-ref=${ref}]`;
const selected = (stage) => [stage.find('.sv-piece.sv-on').map(place), stage.find('.sv-cell.sv-on').map(place), stage.text('[data-part=title]')];

// ---- a run that is over ----------------------------------------------------------------------------------------------
test('the buttons under a run come with its end, go while it plays, and pin, run and leave as Python says', async () => {
  const message = live('chain'), stage = await staged(part(message, 0, 2)), steps = message.end.next;
  const does = () => stage.find('.sv-next-step').map(({ dataset }) => dataset.does);
  assert.deepEqual(does(), []);
  await stage.push(message);
  assert.deepEqual(does(), ['pin', 'run', 'run', 'picture']);
  stage.hub.toggle();
  await later();
  assert.deepEqual(does(), []);
  stage.hub.last();
  await later();
  for (const at of [1, 2]) await fire(stage.find('.sv-next-step')[at], 'click');
  assert.deepEqual(stage.told.filter(([name]) => name === 'really').map(([, asked]) => asked), [steps[1].asks, steps[2].asks]);
  await fire(stage.find('.sv-next-step')[0], 'click');
  assert.deepEqual(stage.hub.pinned, steps[0].at);
  assert.equal(stage.root.dataset.sheet, 'open');
});

test('without a server nothing is offered that needs one', async () => {
  const { end } = run('chain'), { root, hub } = alone(run('chain'));
  await later();
  assert.deepEqual(all(root, '.sv-next-step').map(({ dataset }) => dataset.does), ['pin', 'picture']);
  assert.equal(hub.end.next.length, end.next.length);
});

// ---- what is shown is the trace --------------------------------------------------------------------------------------
for (const name of ['chain', 'tree', 'lookup', 'halves', 'truncated', 'plain', 'scratch', 'hostile']) {
  test(`${name}: the text and the lanes have the marks of the trace`, async () => {
    const message = run(name), stage = await staged(message);
    await stage.toTop();
    assert.deepEqual(pieces(stage), piecesOf(message.steps));
    const lanes = stage.find('.sv-row').map((row) => row.querySelectorAll('.sv-cell').map(status)).slice(0, 11);
    const cells = message.steps.map((step) => [...step.cells, ...(step.last ? [step.last] : [])].map((each) => each.status));
    assert.deepEqual(lanes, cells.slice(0, lanes.length));
    assert.ok(lanes.length >= Math.min(11, message.steps.length));
  });
}

test('widths are the chances, and lines the random draws', async () => {
  const message = run('chain'), stage = await staged(message), cells = message.steps.flatMap((step) => step.cells).filter(({ fill }) => fill !== undefined);
  await stage.toTop();
  assert.deepEqual(percent(stage, '.sv-row .sv-fill', 'width'), cells.map(({ fill }) => fill));
  assert.deepEqual(percent(stage, '.sv-row .sv-tick', 'left'), cells.map(({ tick }) => tick));
});

test('the three numbers, the legend and the sentence are those of the step shown', async () => {
  const message = run('changed_k'), stage = await staged(message);
  for (const cursor of [1, 3, 5]) {
    stage.hub.seek(cursor);
    const { totals } = message.steps[cursor - 1];
    assert.deepEqual([stage.text('[data-number=calls]'), stage.text('[data-number=accepted]')], [totals.tokens_per_call, totals.accepted]);
    assert.deepEqual(stage.find('.sv-count').map((each) => each.textContent), message.head.legend.map(([kind]) => String(totals.counts[kind])));
  }
  await stage.toTop();
  assert.equal(stage.text('.sv-sentence .sv-word'), '8');
  assert.match(stage.text('.sv-lanes'), /K 2 → 8/);
});

test('a run that waits for its first step says nothing of the run before', async () => {
  const stage = await staged(run('chain')), other = live('plain', { run: 'other' });
  assert.ok(stage.text('.sv-sentence') && stage.text('.sv-context'));
  await stage.push(part(other, 0, 0));
  assert.equal(stage.text('.sv-sentence') + stage.text('.sv-context'), '');
  await stage.push(other);
  assert.equal(stage.text('.sv-sentence'), other.steps[0].sentence.join(''));
});

test('without a step the stage is empty, and names what is waited for', async () => {
  const stage = await staged('');
  for (const rubbish of [null, { run: 7 }, { run: '' }, []]) await stage.push(rubbish);
  assert.ok(stage.root.hasAttribute('data-empty'));
  assert.deepEqual(stage.find('.sv-marks b').map((each) => each.textContent), ['accepted', 'rejected', 'resampled', 'bonus'].map(labelOf));
  await stage.push(part(live('chain'), 0, 0, { state: { ...RUNNING, name: 'loading', words: 'loading fable-target' } }));
  assert.equal(stage.text('.sv-busy-words'), 'loading fable-target');
  await stage.push(live('chain'));
  assert.ok(!stage.root.hasAttribute('data-empty'));
});

test('what was accepted behind the end is marked, and a rule without draws says so', async () => {
  const stage = await staged(run('behind end'));
  await stage.toTop();
  assert.deepEqual(stage.find('.sv-lanes-sheet .sv-cell').map((each) => each.classList.contains('sv-behind-end')), [false, false, true, true]);
  assert.equal(stage.find('.sv-more').at(-1).textContent, 'end of text');
});

test('a recorded run says that it is one, and a live one does not', async () => {
  assert.deepEqual((await staged(run('chain'))).find('.sv-badge').length, 1);
  assert.deepEqual((await staged(live('chain'))).find('.sv-badge').length, 0);
});

// ---- what is told ----------------------------------------------------------------------------------------------------
function timed(work) {
  return async () => {
    const stage = await staged('');
    mock.timers.enable({ apis: ['setTimeout'] });
    try { work(stage, (message) => stage.hub.take(structuredClone(message))); } finally { mock.timers.reset(); }
  };
}

test('a short wait between two steps is not told, a longer one is', timed((stage, take) => {
  const message = live('chain'), queued = { state: { ...RUNNING, name: 'queued', ahead: 2, words: 'waiting, 2 ahead' } }, said = () => stage.text('.sv-state');
  take(part(message, 0, 1));
  take(part(message, 1, 1, queued));
  mock.timers.tick(900);
  take(part(message, 1, 2));
  mock.timers.tick(1_200);
  assert.equal(said(), 'running');
  take(part(message, 2, 2, queued));
  mock.timers.tick(999);
  assert.equal(said(), 'running');
  mock.timers.tick(1);
  assert.equal(said(), 'waiting, 2 ahead');
  take(part(message, 2, 3));
  assert.equal(said(), 'running');
}));

test('at most one message in two seconds is spoken, the newest', timed((stage, take) => {
  const message = live('chain'), said = () => stage.text('.sv-live');
  for (let step = 0; step < 3; step += 1) {
    take(part(message, step, step + 1));
    assert.equal(said(), message.steps[0].say);
  }
  mock.timers.tick(1_999);
  assert.equal(said(), message.steps[0].say);
  mock.timers.tick(1);
  assert.equal(said(), message.steps[2].say);
}));

test('a pause and the end are spoken, behind the step that came last', timed((stage, take) => {
  const message = live('chain'), said = () => stage.text('.sv-live'), end = { reason: 'length', words: 'done', next: [] };
  take(part(message, 0, 1));
  take(part(message, 1, 1, { state: { ...RUNNING, name: 'paused', words: 'paused' } }));
  mock.timers.tick(2_000);
  assert.equal(said(), 'paused');
  mock.timers.tick(2_000);
  take(part(message, 1, 2));
  take(part(message, 2, 3));
  take(part(message, 3, 3, { state: { ...RUNNING, name: 'finished', words: 'finished' }, end }));
  mock.timers.tick(2_000);
  assert.equal(said(), `${message.steps[2].say} done`);
}));

test('measuring is asked for once, can be stopped, and shows what came back', async () => {
  const [before, during, after] = sent.measuring, stage = await staged(before), [measure] = stage.find('[data-do=measure]');
  await fire(measure, 'click');
  assert.ok(measure.disabled);
  assert.deepEqual(stage.told.at(-1), ['measure', { run: 'run' }]);
  await stage.push(during);
  assert.match(stage.text('.sv-measuring'), /round 2 of 6/);
  assert.deepEqual([stage.isThere('.sv-measuring'), stage.isThere('[data-do=measure]')], [true, false]);
  await stage.press('[data-do=unmeasure]');
  assert.deepEqual(stage.told.at(-1), ['unmeasure', {}]);
  await stage.push(after);
  assert.equal(stage.text('[data-number=speed]'), '1.4×');
  assert.deepEqual([stage.isThere('.sv-measuring'), stage.isThere('[data-do=measure]'), measure.disabled], [false, true, false]);
});

test('loading shows how far it is, and can be cancelled once', async () => {
  const stage = await staged(sent.loading.known), [bar] = stage.find('.sv-loading .sv-progress'), [cancel] = stage.find('[data-do=cancel]');
  assert.deepEqual([stage.isThere('.sv-loading'), bar.getAttribute('aria-valuenow'), bar.firstElementChild.style.width], [true, '43', '43%']);
  assert.equal(stage.text('.sv-busy-words'), 'downloading fable-target');
  await fire(cancel, 'click');
  assert.deepEqual([stage.told.at(-1), cancel.disabled], [['cancel', {}], true]);
});

test('a share of a download that nobody knows is not claimed', async () => {
  const stage = await staged(sent.loading.unknown);
  assert.deepEqual([stage.find('.sv-loading .sv-progress')[0].getAttribute('aria-valuenow'), stage.text('.sv-loading .sv-progress-words')], [null, '']);
});

test('a model that is loaded during a run is told above the text, each time anew', async () => {
  const message = live('chain'), { state } = sent.loading.known, stage = await staged(part(message, 0, 3));
  await stage.push(part(message, 3, 3, { state }));
  assert.deepEqual([stage.isThere('.sv-line .sv-loading'), stage.text('.sv-state')], [true, 'downloading fable-target']);
  await stage.press('[data-do=cancel]');
  await stage.push(part(message, 3, 4));
  assert.ok(!stage.isThere('.sv-loading'));
  await stage.push(part(message, 4, 4, { state }));
  assert.ok(!stage.find('[data-do=cancel]')[0].disabled);
});

// ---- the selection ---------------------------------------------------------------------------------------------------
for (const [view, at] of [['the text', piece(5, '1')], ['the lanes', cell(5, '1')]]) {
  test(`a click in ${view} selects in all views`, async () => {
    const message = run('chain'), stage = await staged(message);
    await stage.press(at);
    assert.deepEqual(selected(stage), [[[5, '1']], [[5, '1']], titleOf(message, 5, '1')]);
    assert.equal(stage.root.dataset.sheet, 'open');
  });
}

test('hovering looks, a finger does not, and leaving returns to the pin', async () => {
  const message = run('chain'), stage = await staged(message), title = () => stage.text('[data-part=title]');
  await stage.press(cell(5, '1'));
  for (const [kind, expected] of [['touch', [5, '1']], ['mouse', [4, '0']]]) {
    await fire(stage.find(cell(4, '0'))[0], 'pointerover', { pointerType: kind });
    assert.equal(title(), titleOf(message, ...expected));
  }
  await fire(stage.find('.sv-lanes-sheet')[0], 'pointerleave');
  assert.equal(title(), titleOf(message, 5, '1'));
});

test('Escape lets go and the newest step is followed; the next Escape is the page\'s own', async () => {
  const message = live('chain'), stage = await staged(part(message, 0, 4)), heard = [];
  document.body.addEventListener('keydown', ({ key }) => heard.push(key));
  await stage.press(cell(2, '0'));
  await stage.key('Escape');
  assert.deepEqual([stage.hub.pinned, heard, stage.root.hasAttribute('data-sheet')], [null, [], false]);
  await stage.push(part(message, 4, 5));
  assert.equal(stage.text('[data-part=title]'), titleOf(message, 4, message.steps[4].focus));
  await stage.key('Escape');
  assert.deepEqual(heard, ['Escape']);
});

test('the keys walk tokens and steps and replay', async () => {
  const stage = await staged(run('chain')), at = () => [stage.hub.selected().step, stage.hub.selected().ref];
  /** @type {[string, [number, string]][]} */
  const moves = [['Home', [0, 'last']], ['ArrowRight', [1, '0']], ['ArrowLeft', [0, 'last']], ['ArrowLeft', [0, '3']], ['ArrowDown', [1, '2']], ['ArrowUp', [0, 'last']]];
  for (const [key, expected] of moves) {
    await stage.key(key);
    assert.deepEqual(at(), expected, key);
  }
  await stage.key('End');
  assert.equal(at()[0], 6);
  await stage.key(' ');
  assert.ok(stage.hub.playing);
  await stage.key(' ');
});

test('keys do nothing in a field or when they are turned off, which is remembered', async () => {
  const stage = await staged(run('chain')), before = stage.hub.selected(), kept = keeping(), [single] = stage.find('.sv-keys-on');
  for (const key of ['ArrowRight', 'Home']) await stage.key(key, '.sv-pace');
  single.checked = false;
  await fire(single, 'change');
  await stage.key('End');
  assert.deepEqual(stage.hub.selected(), before);
  assert.deepEqual(kept(), { keys: false });
  const other = await staged('');
  assert.ok(other.find('.sv-keys-on')[0].checked, 'another browser');
});

test('the key p asks the page to present', async () => {
  const stage = await staged(run('chain'));
  let count = 0;
  document.addEventListener('sv-present', () => { count += 1; });
  await stage.key('p');
  assert.equal(count, 1);
});

// ---- the text --------------------------------------------------------------------------------------------------------
for (let back = 1; back <= 8; back += 1) {
  test(`the final text ends before a stop text of ${back} characters, also where the player comes back to it`, async () => {
    const name = `stopped ${back}`, message = run(name), stage = await staged(message), letters = (text) => text.replace(/[\n⏎]/g, '');
    const final = () => stage.find('.sv-text-body')[0].querySelectorAll('.sv-prompt, .sv-piece, .sv-answer').filter((each) => !each.matches('.sv-piece.sv-past, .sv-is-rejected')).map((each) => each.textContent).join('');
    for (let time = 0; time < 2; time += 1) {
      assert.equal(letters(final()).trim(), letters(message.head.prompt.map(([text]) => text).join('') + sent.answers[name]).trim());
      stage.hub.first();
      stage.hub.last();
    }
    assert.deepEqual(pieces(stage), piecesOf(message.steps), 'what grew stays');
  });
}

test('which text is shown is marked and remembered', async () => {
  const stage = await staged(run('tree')), kept = keeping();
  await stage.press('[data-mode=final]');
  assert.deepEqual(stage.find('[data-mode]').map((each) => each.getAttribute('aria-pressed')), ['false', 'true']);
  assert.deepEqual([stage.root.dataset.text, kept()], ['final', { text: 'final' }]);
});

for (const name of ['halves', 'truncated', 'tree', 'stopped 3', 'hostile']) {
  test(`${name}: copying gives exactly the answer, and of an earlier step what was written until then`, async () => {
    const message = run(name), stage = await staged(message), copied = [];
    Object.defineProperty(globalThis, 'navigator', { value: { clipboard: { writeText: async (text) => copied.push(text) } }, configurable: true });
    await stage.press('[data-do=copy]');
    stage.hub.seek(1);
    await stage.press('[data-do=copy]');
    assert.deepEqual(copied, [sent.answers[name], [...message.steps[0].written].slice(0, message.end.answer?.length).join('')]);
    assert.ok(stage.text('.sv-copied'));
  });
}

test('a pressed kind dims the others, outlives the next run, and is taken back', async () => {
  const stage = await staged(run('chain')), counts = () => stage.find('.sv-count').map((each) => each.textContent), before = counts();
  const press = (kind) => stage.press(`.sv-legend [data-status=${kind}]`), kinds = () => [stage.root.dataset.kinds, stage.root.hasAttribute('data-only')];
  await press('resampled');
  await press('bonus');
  assert.deepEqual([kinds(), counts()], [['resampled bonus', true], before]);
  await stage.push(run('tree', { run: 'other' }));
  const pressed = () => stage.find('.sv-legend-entry[aria-pressed=true] .sv-legend-name').length;
  assert.equal(pressed(), 2);
  for (const kind of ['bonus', 'resampled']) await press(kind);
  assert.deepEqual([kinds(), pressed()], [['', false], 0]);
});

test('a long prompt is cut visibly and shown on demand', async () => {
  const message = run('long prompt'), stage = await staged(part(message, 0, 1)), shown = () => stage.find('.sv-text .sv-prompt').map((each) => each.textContent).join('');
  assert.equal(stage.text('.sv-more-prompt'), `… ${message.head.hidden.words}`);
  assert.deepEqual([[shown(), '']], message.head.prompt);
  await stage.press('.sv-more-prompt');
  assert.equal(shown(), 'word '.repeat(300));
  assert.equal(stage.find('.sv-more-prompt').length, 0);
});

// ---- the inspector ---------------------------------------------------------------------------------------------------
test('the bars, the draw and the numbers of the inspector are those that were computed', async () => {
  const message = run('chain'), stage = await staged(message), step = message.steps.find((each) => each.has_rejected), { rows, draw } = step.looks[step.focus];
  for (const name of ['both', 'excess', 'shortfall']) {
    assert.deepEqual(percent(stage, `.sv-inspector .sv-track .sv-${name}`, 'width'), rows[name].filter((width) => width > 0));
  }
  assert.deepEqual(percent(stage, '.sv-inspector .sv-random-draw', 'left'), [draw.x]);
  assert.deepEqual(stage.find('.sv-inspector .sv-probabilities-number').map((each) => each.textContent), rows.p.flatMap((p, at) => [p, rows.q[at]]));
});

test('drawing again counts what would be accepted, and changes nothing', async () => {
  const stage = await staged(run('chain')), thrown = () => stage.text('[data-part=thrown]'), inside = () => stage.find('.sv-throw-in').length;
  await stage.press('[data-part=many]');
  assert.equal(stage.find('.sv-throw').length, 100);
  assert.equal(thrown(), `accepted ${inside()} of 100`);
  await stage.press('[data-part=again]');
  assert.equal(thrown(), inside() ? 'would be accepted' : 'would be rejected');
  for (let throws = 2; throws <= 7; throws += 1) await stage.press('[data-part=again]');
  assert.equal(stage.find('.sv-throw').length, 7);
  assert.equal(thrown(), `accepted ${inside()} of 7`);
  assert.deepEqual([stage.told.map(([name]) => name), stage.pulls], [['ready'], []]);
  stage.hub.pin(2, '0');
  assert.equal(thrown(), '');
});

test('a thrown draw is accepted exactly where it falls into the solid part', async () => {
  const stage = await staged(run('chain')), look = stage.hub.look(), { bar, fill } = look.zoom || look.draw;
  await stage.press('[data-part=many]');
  for (const node of stage.find('.sv-throw')) assert.equal(node.classList.contains('sv-throw-in'), parseFloat(node.style.left) < fill);
  assert.ok(percent(stage, '.sv-throw', 'left').every((at) => at >= 0 && at <= bar));
});

test('a drafted bar too small to be read is shown enlarged with the same verdict', async () => {
  const message = run('chain'), stage = await staged(message);
  let count = 0;
  for (const { index, looks } of message.steps) {
    for (const [ref, { zoom, draw, view }] of Object.entries(looks)) {
      stage.hub.pin(index, ref);
      assert.equal(stage.isThere('[data-part=enlarged]'), Boolean(zoom) || view === 'threshold');
      if (!zoom) continue;
      count += 1;
      assert.deepEqual(percent(stage, '.sv-enlarged .sv-both', 'width'), [zoom.fill]);
      assert.equal(zoom.x < zoom.fill, draw.accepted);
    }
  }
  assert.ok(count > 0);
});

test('the log scale shows places and no bars', async () => {
  const stage = await staged(run('chain'));
  await stage.press('[data-part=log]');
  assert.equal(stage.find('.sv-track .sv-bar').length, 0);
  assert.ok(stage.find('.sv-track .sv-dot-p').length > 3);
  assert.equal(stage.find('[data-part=log]')[0].getAttribute('aria-pressed'), 'true');
});

test('siblings are listed with their probabilities and lead to each other', async () => {
  const message = run('tree'), stage = await staged(message);
  stage.hub.pin(0, '1');
  const cells = stage.find('.sv-siblings tbody tr').map((row) => row.querySelectorAll('td').slice(0, 3).map((each) => each.textContent));
  assert.deepEqual(cells, message.steps[0].looks[1].siblings.map(([, , , ...probabilities]) => probabilities));
  assert.equal(stage.text('[data-part=heading]'), message.steps[0].looks[1].heading);
  await fire(stage.find('.sv-siblings tbody button')[0], 'click');
  assert.deepEqual(stage.hub.pinned, { step: 0, ref: '0' });
  await stage.push(run('chain', { run: 'other' }));
  stage.hub.pin(0, '0');
  assert.ok(!stage.isThere('.sv-siblings'));
});

// ---- the player ------------------------------------------------------------------------------------------------------
test('the player shows any moment without a request', async () => {
  const message = run('chain'), stage = await staged(message), isOff = (name) => stage.find(`[data-do=${name}]`)[0].disabled;
  for (const [name, cursor] of [['first', 1], ['forward', 2], ['forward', 3], ['back', 2], ['last', 7]]) {
    await stage.press(`[data-do=${name}]`);
    assert.equal(stage.text('.sv-place'), `step ${cursor} of 7`);
    assert.deepEqual(pieces(stage), piecesOf(message.steps.slice(0, cursor)));
    assert.deepEqual([isOff('back'), isOff('forward')], [cursor === 1, cursor === 7]);
  }
  assert.deepEqual([stage.pulls, stage.told.length], [[], 1]);
});

test('each step has a bar of its kinds, and pressing or pointing at one goes or looks there', async () => {
  const message = run('chain'), stage = await staged(message), [strip] = stage.find('.sv-bars'), at = () => stage.find('.sv-bars-chosen')[0].getAttribute('transform');
  assert.equal(stage.find('.sv-step-bar').length, 7);
  for (const kind of ['accepted', 'rejected', 'ignored']) assert.equal(stage.find(`.sv-bar-${kind}`).length, message.steps.filter(({ bar }) => bar[kind] > 0).length);
  assert.equal(at(), 'translate(14 0)');
  await fire(strip, 'pointermove', { clientX: 5 * 14 + 5, pointerType: 'mouse' });
  assert.deepEqual([at(), stage.text('[data-part=title]')], ['translate(70 0)', titleOf(message, 5, message.steps[5].focus)]);
  await fire(strip, 'pointerleave');
  assert.equal(at(), 'translate(14 0)');
  await fire(strip, 'click', { clientX: 3 * 14 + 5 });
  assert.deepEqual([stage.hub.cursor, stage.hub.selected().step], [4, 3]);
});

test('only the newest step moves, and only at a pace that can be read', async () => {
  const stage = await staged(run('chain')), moving = (phases) => stage.find(`.sv-row[data-phases=${phases}] .sv-step-number`).map((each) => each.textContent);
  assert.deepEqual([stage.find('.sv-row[data-phases]').length, moving('none')], [1, ['7']]);
  stage.hub.seek(2);
  await stage.press('[data-do=forward]');
  assert.deepEqual([stage.find('.sv-row[data-phases]').length, moving('full')], [1, ['3']]);
});

for (const [name, filled] of [['block', 'together'], ['block_in_turn', 'in turn'], ['early_exit', undefined]]) {
  test(`${name}: its lane says how one pass filled the draft, where one did`, async () => {
    const stage = await staged(run(`made ${name}`));
    stage.hub.seek(1);
    await later();
    assert.deepEqual(stage.find('.sv-row[data-phases]').map(({ dataset }) => dataset.filled), [filled]);
  });
}

// ---- long runs -------------------------------------------------------------------------------------------------------
const thousand = (message) => Array.from({ length: 1000 }, (_, index) => ({ ...message.steps[index % message.steps.length], index }));

test('a thousand steps keep few rows and bars, and any of them can be scrolled to', async () => {
  const message = run('long'), stage = await staged({ ...message, steps: thousand(message), total: 1000 });
  assert.ok(stage.find('.sv-row').length < 30);
  assert.ok(stage.find('.sv-step-bar').length < 300);
  stage.hub.back();
  stage.hub.forward();
  await later();
  assert.deepEqual([stage.hub.cursor, stage.find('.sv-step-number').at(-1).textContent], [1000, '1,000']);
  await stage.toTop();
  assert.ok(stage.find('.sv-cell[data-step=0]').length);
});

test('a long strip moves on without drawing its bars anew', async () => {
  const message = live('long'), whole = { ...message, steps: thousand(message), total: 1000 }, stage = await staged(part(whole, 0, 250));
  const [kept] = stage.find('.sv-step-bar[data-step=249]');
  await stage.push(part(whole, 250, 260));
  const numbers = stage.find('.sv-step-bar').map(({ dataset }) => Number(dataset.step)).sort((a, b) => a - b);
  assert.deepEqual(numbers, numbers.map((_, at) => 260 - numbers.length + at));
  assert.equal(stage.find('.sv-step-bar[data-step=249]')[0], kept);
  assert.equal(stage.find('.sv-bars-layer')[0].getAttribute('transform'), `translate(${-numbers[0] * 5} 0)`);
});
