// one_file.js: what every page that lies in one file needs: its texts, its theme, large type for a room, plotly unpacked
// when the first chart comes into sight. No server, no network.
import { markFrame } from '../core/address.js';
import { element } from '../core/element.js';
import { bringPlotly } from '../core/figure.js';
import { loadScript, unpack } from '../core/files.js';
import { bringLanguage } from '../core/language.js';

export const fileText = (id) => document.getElementById(id)?.textContent;

// The same of a page in a folder, where a text may lie in a file beside the page: a script that leaves it on its own
// element, which a page that was opened from disk may load as well.
export const bringText = async (id) => fileText(id) ?? (await loadScript(`data/${id}.js`)).packed;

// in place of a request: the library as a script of this very page
async function unpackPlotly() {
  const script = element('script', '', await unpack(fileText('sv-plotly')));
  document.head.append(script);
  if (!window.Plotly) throw new Error('plotly did not run');
}

function theme(button) {
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  const set = (isDark) => {
    document.body.classList.toggle('dark', isDark);
    button.setAttribute('aria-pressed', String(isDark));
  };
  set(dark.matches);
  dark.addEventListener('change', () => set(dark.matches));
  button.addEventListener('click', () => set(!document.body.classList.contains('dark')));
}

// large type for a room; Escape ends it
export function presentable(button) {
  const { documentElement: root } = document;
  const toggle = () => {
    button.setAttribute('aria-pressed', String(root.toggleAttribute('data-sv-present')));
    window.dispatchEvent(new Event('resize'));
  };
  document.addEventListener('sv-present', toggle);    // the stage's own key asks for it
  button.addEventListener('click', toggle);
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && root.hasAttribute('data-sv-present')) toggle();
  });
}

// Before anything is shown: where plotly lies, the theme. Then `show`, which may take a while.
// unreadable: where it is said that the browser is too old; bringWords: resolves to what lies under the id of a language's
// sentences, where the page has them.
/** @param {HTMLElement} unreadable @param {() => Promise<void>} show @param {(id: string) => Promise<string> | string} [bringWords] */
export async function openFile(unreadable, show, bringWords) {
  if (fileText('sv-plotly')) bringPlotly(unpackPlotly);
  if (bringWords) bringLanguage((name) => bringWords(`sv-words-${name}`));
  markFrame();
  theme(document.getElementById('sv-theme'));
  try { await show(); } catch (error) {
    unreadable.append(element('p', '', 'This page could not be unpacked: it takes a browser of 2023 or later.'));
    throw error;
  }
  document.documentElement.dataset.done = 'yes';
}
