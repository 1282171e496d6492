// share.js: the share drawer, with a link to the run on the stage and the files that hold it; and the line over the
// stage for a link that came. What is said, and whether two texts are the same, comes from the server.
import { answerOf } from '../core/answer.js';
import { element, button, sentence } from '../core/element.js';
import { copyText } from '../core/files.js';
/** @import { Host } from '../core/hub.js' */
/** @import { GoneRun, ShareOffer, SharedRunLine } from '../messages.d.ts' */
/** @import { Page } from '../page.js' */

const MOST = 20000;                                 // characters of an address that are looked at at all
const OWN = ['localhost', '127.0.0.1', '[::1]'];
const HERE = 'This address leads to your own computer only. On another one, start specviz there and append everything from # to its address.';
const root = document.documentElement;

/**
 * @typedef {object} ShareServer
 * @property {(wanted: { run: string, step: number | null, ref: string | null }) => Promise<ShareOffer | GoneRun>} offered what can be shared of a run
 * @property {(wanted: { link: string }) => Promise<SharedRunLine>} linked what a link asks for
 * @property {(wanted: { link: string, run: string }) => Promise<SharedRunLine | null>} compared whether a run has the text that the link tells of
 */
/** @typedef {Host & { page: Page, server: ShareServer }} ShareHost */

// ---- the drawer: what can be shared of the run on the stage -------------------------------------------------------
/** @param {HTMLElement} panel @param {ShareHost} host */
function drawer(panel, host) {
  const field = Object.assign(element('input', 'sv-share-link'), { readOnly: true });
  field.setAttribute('aria-label', 'Link to this run');
  field.addEventListener('focus', () => field.select());
  const copy = Object.assign(element('button', 'sv-share-copy', 'Copy link'), { type: 'button' });
  const done = element('p', 'sv-share-done');
  done.setAttribute('role', 'status');
  const row = element('div', 'sv-share-row');
  row.append(field, copy);
  const words = element('div', 'sv-share-words'), files = element('ul', 'sv-share-files');
  panel.append(element('h2', '', 'Share'), row, done, words, element('h3', '', 'Files'), files);
  copy.addEventListener('click', async () => {
    const isCopied = await copyText(field.value);
    done.textContent = isCopied ? 'Copied.' : 'This browser does not let the page copy: the link is marked, copy it from the field.';
    if (!isCopied) field.focus();
  });

  /** @param {ShareOffer['files'][0]} file */
  function file([name, title, about, address]) {
    const link = element('a', '', title), entry = element('li');
    Object.assign(link, { href: address, download: '' });
    link.dataset.file = name;
    entry.append(link, element('span', '', about));
    return entry;
  }

  /** @param {ShareOffer} offer */
  function show(offer) {
    const { link, page } = offer;
    row.hidden = !link;
    field.value = link ? `${page || location.origin + location.pathname}#run=${link}` : '';
    done.textContent = '';
    const here = link && !page && OWN.includes(location.hostname) ? [HERE] : [];
    words.replaceChildren(...[...offer.words, ...here].map((text) => element('p', '', text)));
    files.replaceChildren(...offer.files.map(file));
  }

  /** @param {string} words @returns {ShareOffer} */
  const without = (words) => ({ link: null, page: null, words: [words], files: [] });
  const GONE = without('This run is gone from the server. Run it again.');
  const SILENT = without('The server does not answer: is it still running? Open this again when it does.');
  let asked = 0, seen = null;
  async function look() {
    const run = host.page.run();
    if (!run || !root.hasAttribute('data-sv-share')) return;
    const mine = asked += 1, place = seen = host.page.hub().pinned;
    const offer = await answerOf(host.server.offered({ run, step: place?.step ?? null, ref: place?.ref ?? null }));
    if (mine === asked) show(!offer ? SILENT : 'gone' in offer ? GONE : offer);
  }
  new MutationObserver(look).observe(root, { attributeFilter: ['data-sv-share'] });
  host.page.onRun(look);
  host.page.settled.then(() => host.page.hub().on('select', () => { if (host.page.hub().pinned !== seen) look(); }));
}

// ---- a link that came: its settings are filled in; when its run was made here, the texts are compared -------------
/** @param {ShareHost} host */
function guest(host) {
  const line = element('div', 'sv-shared'), words = element('p', 'sv-shared-words');
  const again = button('sv-shared-again', 'Fill in the shared settings', () => take(link));
  const close = button('sv-shared-close', '×', forget);
  close.setAttribute('aria-label', 'Put the shared run away');
  words.setAttribute('role', 'status');
  line.append(words, again, close);
  let link = null, pinned = null, asked = 0, turns = 0;

  /** @param {SharedRunLine} told */
  function say(told) {
    const isNew = !line.isConnected;
    if (isNew) document.querySelector('#stage .sv-stage').before(line);
    line.dataset.state = told.state;
    sentence(words, told.words);
    again.hidden = told.state !== 'other';
    if (isNew) window.dispatchEvent(new Event('resize'));
  }

  function forget() {
    link = null;
    asked += 1;
    line.remove();
    if (location.hash.startsWith('#run=')) history.replaceState(history.state, '', location.pathname + location.search);
    window.dispatchEvent(new Event('resize'));
  }

  /** @param {string} text */
  async function take(text) {
    const mine = asked += 1;
    await host.page.settled;
    /** @type {SharedRunLine} */
    const silent = { state: 'refused', words: ['The server does not answer: open the link again.'], at: null };
    const told = await answerOf(host.server.linked({ link: text.slice(0, MOST) })) || silent;
    if (mine !== asked) return;
    link = told.state === 'ready' ? text : null;
    pinned = null;
    if (link) {
      const filled = host.page.filled();
      host.trigger('apply', { link });
      await filled;
      if (mine !== asked) return;
    }
    say(told);
    if (link && host.page.run()) compare(host.page.run(), ['waiting', 'same', 'differs', 'unknown']);
  }

  // among: what is said of it, if not everything
  /** @param {string} run @param {SharedRunLine['state'][]} [among] */
  async function compare(run, among) {
    const mine = asked, turn = turns += 1;
    const told = await answerOf(host.server.compared({ link, run }));
    const isLate = mine !== asked || turn !== turns || run !== host.page.run();
    if (!told || isLate || (among && !among.includes(told.state))) return;
    say(told);
    if (told.at && pinned !== run && host.page.hub().refs(told.at.step).includes(told.at.ref)) {
      pinned = run;
      host.page.hub().pin(told.at.step, told.at.ref);
    }
  }

  host.page.onRun(({ run }) => { if (link) compare(run); });
  host.page.route('run', take);
}

// holder: holds .sv-panel; host.page: what the page lends; host.server: offered, linked, compared.
export const share = (holder, host) => {
  drawer(holder.querySelector('.sv-panel'), host);
  guest(host);
};
