// sampling.js: turns logits into probabilities, the target's p and the draft's q alike: temperature, then top-k, then top-p.

/** @typedef {{ temperature: number, topK: number, topP: number }} Sampling temperature 0: the most likely token has all; topK 0 and topP 1: no limit */

/** @param {Float32Array} row */
export function mostLikely(row) {
  let best = 0;
  for (let token = 1; token < row.length; token += 1) if (row[token] > row[best]) best = token;
  return best;
}

/** @param {Float32Array} logits */
export function softmax(logits) {
  const most = logits[mostLikely(logits)], probs = new Float32Array(logits.length);
  let sum = 0;
  for (let token = 0; token < logits.length; token += 1) sum += probs[token] = Math.exp(logits[token] - most);
  for (let token = 0; token < logits.length; token += 1) probs[token] /= sum;
  return probs;
}

/** @param {Float32Array} logits @param {Sampling} sampling @returns {Float32Array} */
export function probabilities(logits, { temperature, topK, topP }) {
  const best = mostLikely(logits);
  if (temperature === 0) return Float32Array.from(logits, (_, token) => Number(token === best));
  const scaled = temperature === 1 ? logits.slice() : logits.map((logit) => (logit - logits[best]) / temperature);
  if (topK > 0 && topK < scaled.length) keepLargest(scaled, topK);
  if (topP < 1) keepNucleus(scaled, topP);
  return softmax(scaled);
}

// Tokens as likely as the last one of the k stay, too.
/** @param {Float32Array} logits @param {number} k */
function keepLargest(logits, k) {
  const least = logits.slice().sort().at(-k);
  logits.forEach((logit, token) => { if (logit < least) logits[token] = -Infinity; });
}

// Drops the least likely tokens, up to a total probability of 1 - topP; the most likely one always stays.
/** @param {Float32Array} logits @param {number} topP */
function keepNucleus(logits, topP) {
  const probs = softmax(logits), ascending = [...logits.keys()].sort((one, other) => logits[one] - logits[other]);
  ascending.pop();
  let sum = 0;
  for (const token of ascending) {
    sum += probs[token];
    if (sum > 1 - topP) return;
    logits[token] = -Infinity;
  }
}
