// The game of verdicts: played to its end, with nothing told before the guess.
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import { all, fire, node, texts, until } from './dom.js';
import { sent, staged } from './messages.js';
import { predict } from '../../assets/web/learn/predict.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';

await staged();                                     // the game's inspector is a copy of a stage's
const unpacked = (packed) => JSON.parse(gunzipSync(Buffer.from(packed, 'base64')).toString());
const titleOf = (look) => look.title.join('');
const told = [];
document.addEventListener('sv-predicted', ({ detail }) => told.push(detail));

async function begun(block, isStill = true) {
  const root = node();
  globalThis.matchMedia = () => /** @type {any} */ ({ matches: isStill });
  told.length = 0;
  document.body.append(root);
  render(html`<${predict} block=${block} host=${{}} />`, root);
  await until(() => all(root, '.sv-predict-board')[0]?.dataset.state === 'asked');
  const find = (selector) => all(root, selector), text = (selector) => texts(root, selector)[0];
  return { find, text, state: () => find('.sv-predict-board')[0].dataset.state, press: (selector) => fire(find(selector)[0], 'click'), key: (key, more) => fire(find('.sv-predict-board')[0], 'keydown', { key, ...more }) };
}

test('a whole round is played and counted, and no guess is helped', async () => {
  const { places } = unpacked(sent.predict.one.runs[0][1]), game = await begun(sent.predict.one), title = () => game.text('.sv-title');
  let right = 0;
  for (const [at, { ask, look, accepted, bet }] of places.entries()) {
    assert.deepEqual([title(), game.text('.sv-pill'), game.text('.sv-predict-outcome')], [titleOf(ask), 'undecided', '']);
    assert.equal(game.find('.sv-random-draw, .sv-throw, .sv-role-emitted').length, 0);
    const said = at % 3 !== 2;
    if (at % 2) await game.key(said ? 'a' : 'R'); else await game.press(`.sv-predict-${said ? 'accepted' : 'rejected'}`);
    right += said === accepted ? 1 : 0;
    assert.deepEqual([title(), told.at(-1)], [titleOf(look), { right: said === accepted, accepted }]);
    assert.ok(game.text('.sv-predict-outcome').endsWith(`it was ${accepted ? 'accepted' : 'rejected'}.`));
    assert.match(game.text('.sv-predict-score'), new RegExp(`right ${right} of ${at + 1} `));
    assert.ok(game.text('.sv-predict-score').endsWith(bet));
    await game.key('a');
    assert.equal(told.length, at + 1, 'a second guess does not count');
    await game.press('.sv-primary:not([hidden])');
  }
  assert.equal(game.state(), 'over');
  assert.match(game.text('.sv-predict-outcome'), new RegExp(`right ${right} of ${places.length} times`));
  await game.press('.sv-primary:not([hidden])');
  assert.deepEqual([title(), game.state()], [titleOf(places[0].ask), 'asked']);
});

test('the draw falls before the verdict is told', async () => {
  const game = await begun(sent.predict.one, false), asked = game.text('.sv-title');
  mock.timers.enable({ apis: ['setTimeout'] });
  game.find('.sv-predict-accepted')[0].click();
  mock.timers.tick(699);
  mock.timers.reset();
  assert.deepEqual([game.state(), game.text('.sv-title'), game.text('.sv-predict-outcome'), game.find('.sv-predict-rejected')[0].disabled], ['falling', asked, '', true]);
  assert.ok(game.find('.sv-random-draw').length);
});

test('keys with a modifier are the browser\'s', async () => {
  const game = await begun(sent.predict.one);
  for (const held of ['ctrlKey', 'metaKey', 'altKey']) await game.key('a', { [held]: true });
  assert.equal(game.state(), 'asked');
});

test('of several runs the chosen one is played, and what a model or a person wrote stays text', async () => {
  const block = sent.predict.two, game = await begun(block), [select] = game.find('select');
  assert.deepEqual(game.find('option').map((each) => each.textContent), block.runs.map(([title]) => title));
  for (const [place, [, packed]] of block.runs.entries()) {
    const { places } = unpacked(packed), [board] = game.find('.sv-predict-board');
    select.value = String(place);
    await fire(select, 'change');
    await until(() => game.find('.sv-predict-board')[0] !== board);
    assert.equal(game.text('.sv-title'), titleOf(places[0].ask));
    await game.key('r');
    assert.equal(game.text('.sv-title'), titleOf(places[0].look));
  }
  assert.equal(game.find('img, script').length, 0);
});
