// files.js: a text as a file of the person's own, on the clipboard, or unpacked; a script of this page, on demand.
import { bytesOf } from './base64.js';
import { element } from './element.js';

export const saveText = (file, text) => saveBlob(file, new Blob([text], { type: 'application/json' }));

/** @param {string} file @param {Blob} blob */
export function saveBlob(file, blob) {
  const link = element('a');
  link.href = URL.createObjectURL(blob);
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href));
}

// resolves to whether the text is on the clipboard, also on a page that came without encryption
export async function copyText(text) {
  const fill = (event) => {
    event.clipboardData.setData('text/plain', text);
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (error) {
    document.addEventListener('copy', fill, { capture: true, once: true });
    const done = document.execCommand('copy');
    document.removeEventListener('copy', fill, { capture: true });
    return done;
  }
}

// packed: gzip, written in the letters of base64; resolves to the text
export const unpack = (packed) => new Response(new Blob([bytesOf(packed)]).stream().pipeThrough(new DecompressionStream('gzip'))).text();

// resolves to the script's element once it has run
export const loadScript = (src) => new Promise((done, failed) => {
  const script = Object.assign(element('script'), { src, onload: () => done(script), onerror: () => failed(new Error(`${src} did not load`)) });
  document.head.append(script);
});
