// How a text is looked up in a table of another language, and which language a browser gets.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import './dom.js';

const { languageOf, Words } = await import('../../assets/web/core/language.js');
const words = new Words({
  stage: {
    accepted: 'angenommen',
    'step {number} of {number2}': 'Schritt {number} von {number2}',
    'step {number}: {token}, {words}': 'Schritt {number}: {token}, {words}',
    '{number} with {name}': 'mit {name}: {number}',
    'The draft gave <> {number}.': 'Dem Wort <> gab der Entwurf {number}.',
    'It is dropped.': 'Es entfällt.',
    'It stays. It counts.': 'Es bleibt und zählt.',
  },
  page: { 'Run {name} instead': 'Stattdessen {name}', 'Run {name} instead of {other}': 'Statt {other} nun {name}' },
});
const SAID = {
  'a text as it stands': ['accepted', 'angenommen'],
  'numbers': ['step 3 of 45', 'Schritt 3 von 45'],
  'a number with its unit': ['The draft gave <> <0.1\u00a0%.', 'Dem Wort <> gab der Entwurf <0.1\u00a0%.'],
  'a name that goes elsewhere': ['2.5 with fable-target', 'mit fable-target: 2.5'],
  'words that are looked up in turn': ['step 4: ␣fox, accepted', 'Schritt 4: ␣fox, angenommen'],
  'the longer of two that fit': ['Run one instead of two', 'Statt two nun one'],
  'sentence by sentence': ['It is dropped. The draft gave <> 9\u00a0%. It is dropped.', 'Es entfällt. Dem Wort <> gab der Entwurf 9\u00a0%. Es entfällt.'],
  'several sentences as one': ['It is dropped. It stays. It counts.', 'Es entfällt. Es bleibt und zählt.'],
};
const LACKING = {
  'an unknown text': 'rejected',
  'one unknown sentence of two': 'It is dropped. It is not.',
  'words that are not there': 'step 4: ␣fox, rejected',
  'a word in place of a number': 'step three of 45',
  'half of a sentence': 'It stays.',
  'a name of every object': 'constructor',
};

for (const [what, [english, other]] of Object.entries(SAID)) test(`is said: ${what}`, () => assert.equal(words.of(english), other));

for (const [what, english] of Object.entries(LACKING)) test(`stays English: ${what}`, () => assert.equal(words.of(english), null));

test('a text that comes again is answered as before', () => {
  for (let at = 0; at < 5000; at += 1) assert.equal(words.of(`step ${at} of 5000`), `Schritt ${at} von 5000`);
  assert.equal(words.of('step 1 of 5000'), 'Schritt 1 von 5000');
});

/** @type {Record<string, [string[], string, string]>} */
const LANGUAGES = {
  'the first that is there': [['fr', 'de-AT', 'en'], '', 'de'],
  'English before it': [['en-GB', 'de'], '', 'en'],
  'none that is there': [['fr', 'it'], '', 'en'],
  'a choice': [['de'], 'en', 'en'],
  'nothing known': [[], '', 'en'],
};
for (const [what, [languages, chosen, name]] of Object.entries(LANGUAGES)) test(`the page speaks: ${what}`, () => assert.equal(languageOf(languages, chosen), name));
