import assert from 'node:assert/strict';
import { test } from 'node:test';
import { node } from './dom.js';
import { Standing } from '../../assets/web/core/standing.js';
/** @import { FieldFacts, StandingRun } from '../../assets/web/messages.d.ts' */

/** @type {FieldFacts} */
const ABOUT = {
  counting: { chain: ['method', 'prompt', 'k', 'temperature', 'target', 'chat'], lookup: ['method', 'prompt', 'lookup.n'] },
  titles: { k: 'K', temperature: 'temperature', target: 'target', method: 'method', chat: 'chat template' },
  whole: { prompt: 'this prompt' }, values: { lookup: 'Prompt lookup' }, live: ['k', 'method'], otherwise: 'Run with these settings',
};
/** @type {StandingRun} */
const RUN = { words: 'Run', missing: '', needs: [], about: ABOUT };
const MADE = { method: 'chain', prompt: 'Once', k: 4, temperature: 1, target: 'own/large', chat: false, 'lookup.n': 2 };

// a page whose browser keeps `kept` for its tab, with a Run button
function page(kept = {}) {
  const text = { nodeType: 3, nodeValue: 'Run' }, button = { childNodes: [{ nodeType: 1 }, text], title: '' };
  Object.assign(globalThis, { sessionStorage: { getItem: (name) => kept[name] ?? null, setItem: (name, value) => { kept[name] = value; } } });
  Object.assign(document, { querySelector: () => button, documentElement: node('html') });
  return { kept, says: () => text.nodeValue, title: () => button.title, isDim: () => document.documentElement.hasAttribute('data-sv-changed') };
}

// a recorded run stands, and its settings are in the fields
function stands(run = 'a') {
  const made = new Standing();
  made.fields({ ...MADE, k: 16 });
  assert.equal(made.begin(run, false), true);
  made.say(RUN);
  made.fields({ ...MADE });
  made.keep();
  return made;
}

test('the first change dims the stage and Run names it, and undoing it undims', () => {
  const shown = page(), standing = stands();
  assert.deepEqual([shown.says(), shown.isDim()], ['Run', false]);
  /** @type {[object, string][]} */
  const changes = [
    [{ k: 8 }, 'Run with K 8'], [{ temperature: 0.5 }, 'Run with temperature 0.5'], [{ target: 'other/small' }, 'Run with target small'],
    [{ prompt: 'Twice' }, 'Run with this prompt'], [{ chat: true }, 'Run with chat template on'], [{ method: 'lookup' }, 'Run with method Prompt lookup'],
  ];
  for (const [change, words] of changes) {
    standing.fields({ ...MADE, ...change });
    assert.deepEqual([shown.says(), shown.isDim()], [words, true]);
    standing.fields({ ...MADE });
    assert.deepEqual([shown.says(), shown.isDim()], ['Run', false]);
  }
});

test('several changes are not named one by one', () => {
  const shown = page();
  stands().fields({ ...MADE, k: 8, temperature: 0 });
  assert.deepEqual([shown.says(), shown.isDim()], ['Run with these settings', true]);
});

test('a field that does not count under the method of the run is no change', () => {
  const shown = page();
  stands().fields({ ...MADE, 'lookup.n': 5, pace: 'full' });
  assert.deepEqual([shown.says(), shown.isDim()], ['Run', false]);
});

test('what is missing is said until one of the fields is changed that can end the need', () => {
  const shown = page(), standing = stands();
  standing.say({ ...RUN, words: 'Run needs large', missing: 'large is not on this machine', needs: ['target'] });
  for (const change of [{ k: 8 }, { k: 8, prompt: 'Twice' }]) {
    standing.fields({ ...MADE, ...change });
    assert.deepEqual([shown.says(), shown.title(), shown.isDim()], ['Run needs large', 'large is not on this machine', true]);
  }
  standing.fields({ ...MADE });
  assert.deepEqual([shown.says(), shown.title()], ['Run needs large', 'large is not on this machine']);
  standing.fields({ ...MADE, target: 'small' });
  assert.equal(shown.says(), 'Run with target small');
});

test('a run of the fields was made with what they said when it began, and with what it followed since', () => {
  const shown = page(), standing = new Standing();
  standing.fields({ ...MADE });
  assert.equal(standing.begin('live', true), false, 'nothing is put into the fields');
  standing.say(RUN);
  standing.fields({ ...MADE, k: 2, temperature: 0.5 });
  assert.deepEqual([shown.says(), shown.isDim()], ['Run', false], 'it goes on');
  standing.end();
  assert.deepEqual([shown.says(), shown.isDim()], ['Run with temperature 0.5', true], 'K was followed');
});

test('what no step has followed is a change once the server has told how the run was made', () => {
  const { kept, ...shown } = page(), standing = new Standing();
  standing.fields({ ...MADE });
  standing.begin('live', true);
  standing.say(RUN);
  standing.fields({ ...MADE, k: 8 });
  standing.end();
  standing.say({ ...RUN, made: { k: 4 } });
  assert.deepEqual([shown.says(), shown.isDim()], ['Run with K 8', true]);
  assert.equal(JSON.parse(kept['specviz-made']).made.k, 4, 'also for a page that is loaded anew');
});

test('a run that was refused leaves the fields, and the run before it as it was made', () => {
  const { kept, ...shown } = page(), standing = stands();
  standing.fields({ ...MADE, prompt: 'Twice' });
  standing.begin('refused', true);
  assert.equal(standing.begin('a', false, true), false, 'nothing is put into the fields');
  standing.say(RUN);
  assert.deepEqual([shown.says(), shown.isDim()], ['Run with this prompt', true]);
  assert.equal(new Standing().begin('a', false), false, 'nor on a page that is loaded anew');
  assert.equal(JSON.parse(kept['specviz-made']).made.prompt, 'Once');
});

test('a value is named as it is, whatever it is called', () => {
  const shown = page(), standing = stands();
  for (const name of ['constructor', 'toString', '__proto__']) {
    standing.fields({ ...MADE, target: `own/${name}` });
    assert.equal(shown.says(), `Run with target ${name}`);
    standing.fields({ ...MADE, target: name });
    assert.equal(shown.says(), `Run with target ${name}`);
    standing.fields({ ...MADE });
  }
  standing.begin('b', true);
  standing.fields({ ...MADE, method: 'constructor' });
  standing.end();
  assert.equal(shown.isDim(), false);
});

test('a page that is loaded anew keeps what a person has changed, and else fills the fields again', () => {
  const { kept } = page();
  const standing = stands();
  assert.equal(new Standing().begin('a', false), true, 'nobody has touched a field');
  standing.fields({ ...MADE, k: 8 });
  standing.touch();
  const again = new Standing();
  assert.equal(again.begin('a', false), false);
  assert.equal(new Standing().begin('b', false), true, 'another run');
  const shown = page(kept);
  again.say(RUN);
  again.fields({ ...MADE, k: 8 });
  assert.deepEqual([shown.says(), shown.isDim()], ['Run with K 8', true]);
});

test('nothing is said to have changed where nobody knows how the run was made', () => {
  const shown = page(), standing = new Standing();
  standing.begin('a', false);
  standing.fields({ ...MADE });
  standing.say({ ...RUN, words: 'Run with these settings', missing: 'the bar cannot show how' });
  assert.deepEqual([shown.says(), shown.isDim()], ['Run with these settings', false]);
});
