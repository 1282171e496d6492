// A server that is away: every part that asks it goes on without an answer.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { node, texts, until } from './dom.js';
import { keeping, run, sent, staged } from './messages.js';
import { answerOf } from '../../assets/web/core/answer.js';
import { lessonPanel } from '../../assets/web/learn/lesson_panel.js';
import { EveryK } from '../../assets/web/stage/every_k.js';
import { Opening } from '../../assets/web/stage/opening.js';

const away = async () => { throw new TypeError('away'); };

test('an answer is passed on, and none is null', async () => {
  assert.equal(await answerOf(Promise.resolve(7)), 7);
  assert.equal(await answerOf(away()), null);
});

test('a lesson that the server does not give is refused in words', async () => {
  keeping({});
  Object.assign(globalThis, { location: { hash: '' }, dispatchEvent() {} });
  const holder = node(), panel = node();
  panel.className = 'sv-panel';
  holder.append(panel);
  const routes = {};
  const page = { hub: () => null, route: (name, take) => { routes[name] = take; }, allControls() {}, keepControls() {}, go() {} };
  lessonPanel(holder, /** @type {any} */ ({ page, server: { lesson: away }, trigger() {} }));
  await routes.lesson('acceptance-rule');
  assert.match(texts(holder, '.sv-panel')[0], /The server did not answer\./);
});

test('a run is asked about again once the server is back', async () => {
  const { hub, root } = await staged();
  let asked = 0;
  const every = new EveryK(root, hub, { ask: async () => { asked += 1; return away(); } });
  hub.take(run('chain'));
  await until(() => asked > 0 && every.asked === null);
  const before = asked;
  hub.emit('info');
  await until(() => asked > before);
});

test('an opening that does not come opens nothing', async () => {
  const { root } = await staged();
  const opening = new Opening(root, { ask: away, leave() {} });
  await opening.open({ run: sent.runs.chain.run });
  assert.equal(root.hasAttribute('data-opening'), false);
});
