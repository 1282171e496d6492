import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, later, node, texts } from './dom.js';
/** @import { ShareOffer, SharedRunLine } from '../../assets/web/messages.d.ts' */
/** @import { ShareServer } from '../../assets/web/share/share.js' */

const root = node('html'), stage = node(), page = node();
let noticed = () => {};
page.append(stage);
Object.assign(document, { documentElement: root, querySelector: () => stage });
Object.assign(globalThis, {
  MutationObserver: class { constructor(look) { noticed = look; } observe() {} },
  location: { origin: 'http://localhost:7860', pathname: '/', hostname: 'localhost', hash: '', search: '' },
  history: { state: null, replaceState() {} },
  window: Object.assign(globalThis, { dispatchEvent() {} }),
});
const { share } = await import('../../assets/web/share/share.js');

/** @type {ShareOffer} */
const OFFER = { link: 'abc', page: null, words: ['It carries the settings.'], files: [['trace', 'The run', 'all of it', 'specviz/trace/one']] };

/** @param {Partial<ShareServer>} [server] */
function opened({ offered = async () => OFFER, linked, compared } = {}) {
  const panel = node(), done = [], routes = {}, runs = [], pins = [];
  const hub = { pinned: null, on() {}, refs: () => ['0'], pin: (...place) => pins.push(place) };
  const lent = { hub: () => hub, run: () => 'one', onRun: (tell) => runs.push(tell), settled: Promise.resolve(), filled: async () => {}, route: (name, take) => { routes[name] = take; } };
  share({ querySelector: () => panel }, { page: lent, server: { offered, linked, compared }, trigger: (...what) => done.push(what) });
  return { panel, done, routes, runs, pins, line: () => all(page, '.sv-shared')[0] };
}

/** @param {Partial<ShareServer>} [how] */
async function drawer(how) {
  const made = opened(how);
  root.setAttribute('data-sv-share', '');
  await noticed();
  root.removeAttribute('data-sv-share');
  return made.panel;
}

test('a run on this computer has a link, what it carries, a warning that it leads here only, and its files', async () => {
  const panel = await drawer();
  assert.equal(all(panel, 'input')[0].value, 'http://localhost:7860/#run=abc');
  const words = all(panel, '.sv-share-words')[0].childNodes.map((each) => each.textContent);
  assert.equal(words[0], 'It carries the settings.');
  assert.match(words[1], /leads to your own computer only\. .* append everything from #/);
  const [file] = all(panel, 'a');
  assert.deepEqual([file.href, file.textContent], ['specviz/trace/one', 'The run']);
});

test('a public page is named in the link, and then nothing warns', async () => {
  const panel = await drawer({ offered: async () => ({ ...OFFER, page: 'https://example.org/space' }) });
  assert.equal(all(panel, 'input')[0].value, 'https://example.org/space#run=abc');
  assert.equal(all(panel, '.sv-share-words')[0].childNodes.length, 1);
});

test('a run that is gone and a server that is silent are told apart, and neither has a link', async () => {
  /** @type {[ShareServer['offered'], RegExp][]} */
  const cases = [[async () => ({ gone: true }), /gone from the server/], [async () => { throw new Error(); }, /does not answer/]];
  for (const [offered, words] of cases) {
    const panel = await drawer({ offered });
    assert.equal(all(panel, '.sv-share-row')[0].hidden, true);
    assert.match(all(panel, '.sv-share-words')[0].textContent, words);
  }
});

test('a link that came fills the fields and is compared with the run that follows; its place is pinned once', async () => {
  /** @type {SharedRunLine} */
  const said = { state: 'same', words: ['The ', 'same', ' text.'], at: { step: 2, ref: '0' } };
  const { done, routes, runs, pins, line } = opened({ linked: async () => ({ state: 'ready', words: ['A shared run'], at: null }), compared: async () => said });
  await routes.run('letters');
  await later();
  assert.deepEqual(done, [['apply', { link: 'letters' }]]);
  runs.forEach((tell) => tell({ run: 'one' }));
  runs.forEach((tell) => tell({ run: 'one' }));
  await later();
  assert.equal(texts(line(), '.sv-shared-words')[0], 'The same text.');
  assert.deepEqual(pins, [[2, '0']]);
  await fire(all(line(), '.sv-shared-close')[0], 'click');
  assert.equal(line(), undefined);
});

test('a link that cannot be used says why and fills nothing', async () => {
  const { done, routes, line } = opened({ linked: async () => ({ state: 'refused', words: ['This link cannot be used here.'], at: null }) });
  await routes.run('x');
  assert.equal(texts(line(), '.sv-shared-words')[0], 'This link cannot be used here.');
  assert.deepEqual(done, []);
});
