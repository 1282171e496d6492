// written.js: the messages that tests/web/messages.py has written, by their record's name, in a document that has the
// markup of a page.
import { readFileSync } from 'node:fs';
import { parsed } from './dom.js';
import { folder, sent } from './messages.js';
/** @import * as Messages from '../../assets/web/messages.d.ts' */

const read = (name) => JSON.parse(readFileSync(`${folder}/${name}.json`, 'utf8'));

/**
 * @typedef {object} Written
 * @property {Messages.RunMessage[]} RunMessage
 * @property {Messages.Opening[]} Opening
 * @property {Messages.EveryK[]} EveryK
 * @property {Messages.NoOtherK[]} NoOtherK
 * @property {Messages.LessonPanel[]} LessonPanel
 * @property {Messages.PageMessage[]} PageMessage
 * @property {Messages.PlayerData[]} PlayerData
 * @property {Messages.PredictGame[]} PredictGame
 * @property {Messages.TextChunk[]} TextChunk
 * @property {Messages.ShareOffer[]} ShareOffer
 * @property {Messages.SharedRunLine[]} SharedRunLine
 * @property {Messages.StandingRun[]} StandingRun
 * @property {Messages.ShippedEntry[]} ShippedEntry
 * @property {Messages.KeptRun[]} KeptRun
 * @property {Messages.MethodHelp[]} MethodHelp
 */
/** @type {Written} */
export const written = new Proxy(/** @type {Written} */ ({}), { get: (_, name) => read(String(name)) });

export const markup = () => parsed(sent.markup);
document.body.append(Object.assign(document.createElement('script'), { id: 'sv-stage-html', content: markup() }));

// The texts that a person may read in a message: what stands in these fields, at any depth. A list of texts is one
// sentence, unless its field is among `listed`.
/** @param {any} message @param {string[]} fields @param {string[]} listed @returns {string[]} */
export function said(message, fields, listed = []) {
  if (Array.isArray(message)) return message.flatMap((each) => said(each, fields, listed));
  if (message === null || typeof message !== 'object') return [];
  return Object.entries(message).flatMap(([name, value]) => {
    if (listed.includes(name) && Array.isArray(value)) return value.flatMap(sentences);
    return fields.includes(name) ? sentences(value) : said(value, fields, listed);
  });
}

function sentences(value) {
  if (typeof value === 'string') return [value];
  if (!Array.isArray(value)) return [];
  return value.every((each) => typeof each === 'string') ? [value.join('')] : value.flatMap(sentences);
}

const plainly = (text) => text.replace(/\s+/g, ' ').trim();

// all that stands in the drawn nodes: their text, and what their attributes say
export function drawnText(root) {
  const attributes = (each) => [...Object.values(each.attributes), each.title, each.value, ...each.children.flatMap(attributes)];
  return [root.textContent, ...attributes(root)].map((each) => plainly(String(each ?? ''))).join('\n');
}

// the texts that are not among what was drawn
export const missing = (texts, root) => {
  const drawn = drawnText(root);
  return [...new Set(texts)].filter((text) => !drawn.includes(plainly(text)));
};
