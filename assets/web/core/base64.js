// base64.js: the bytes that a page holds as letters.

/** @param {string} letters @returns {Uint8Array<ArrayBuffer>} */
export function bytesOf(letters) {
  const text = atob(letters), bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);    // megabytes: a call for each would take a second
  return bytes;
}
