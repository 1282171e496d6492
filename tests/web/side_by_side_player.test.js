import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, texts } from './dom.js';
import { Controls } from '../../assets/web/reports/side_by_side_player.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { PlayerMode } from '../../assets/web/messages.d.ts' */

/** @type {PlayerMode} */
const TIME = { name: 'time', label: 'by time', paces: [['as recorded', 20, true], ['4x slower', 80, false]], frames: [['0 ms', [0, 0], null], ['9 ms', [1, 2], null]], ends: ['second', 'first'], rest: -1 };
/** @type {PlayerMode} */
const TOKEN = { name: 'token', label: 'by token', paces: [['slow', 800, false]], frames: [['0 tokens', [0, 0], 0], ['1 token', [1, 1], 1], ['2 tokens', [2, 1], 2]], ends: ['', ''], rest: -1 };

function drawn(more = {}) {
  const root = node(), done = [], does = Object.fromEntries(['press', 'seek', 'turn', 'repace'].map((name) => [name, (...given) => done.push([name, ...given])]));
  render(html`<${Controls} modes=${[TIME, TOKEN]} mode=${TIME} at=${1} isPlaying=${false} said="first" pace=${{ current: null }} ...${does} ...${more} />`, root);
  return { root, done };
}

test('the player says where both runs are and has a place for every frame', () => {
  const { root } = drawn(), [scrub] = all(root, '.sv-side-by-side-scrub');
  assert.deepEqual(texts(root, '.sv-side-by-side-clock'), ['9 ms']);
  assert.deepEqual([String(scrub.value), scrub.attributes.max, scrub.attributes['aria-valuetext']], ['1', '1', '9 ms']);
  assert.deepEqual([texts(root, 'option'), texts(root, '.sv-hidden')], [['as recorded', '4x slower'], ['first']]);
});

test('its button says what a press does, and a press, a drag and a mode do what they say', async () => {
  const name = (isPlaying) => all(drawn({ isPlaying }).root, '.sv-side-by-side-toggle')[0].attributes['aria-label'];
  assert.deepEqual([name(false), name(true)], ['replay both', 'pause both']);
  const { root, done } = drawn(), [scrub] = all(root, '.sv-side-by-side-scrub');
  await fire(all(root, '.sv-side-by-side-toggle')[0], 'click');
  scrub.value = '0';
  await fire(scrub, 'input');
  await fire(all(root, '[data-mode=token]')[0], 'click');
  await fire(all(root, '.sv-side-by-side-pace')[0], 'change');
  assert.deepEqual(done.map(([what, given]) => [what, given?.name ?? (typeof given === 'number' ? given : null)]), [['press', null], ['seek', 0], ['turn', 'token'], ['repace', null]]);
});

test('the mode that is chosen is marked, and one mode alone is no choice', () => {
  const pressed = (root) => all(root, '.sv-mode').map((each) => each.attributes['aria-pressed']);
  assert.deepEqual([pressed(drawn().root), pressed(drawn({ mode: TOKEN, at: 2 }).root)], [['true', 'false'], ['false', 'true']]);
  assert.equal(all(drawn({ modes: [TOKEN], mode: TOKEN }).root, '.sv-side-by-side-modes')[0].hidden, true);
});
