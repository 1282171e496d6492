// sampling.js: turns logits into probabilities, the target's p and the draft's q alike: temperature, then top-k, then top-p, then min-p.

/** @typedef {{ temperature: number, topK: number, topP: number, minP: number }} Sampling temperature 0: the most likely token has all; topK 0, topP 1 and minP 0: no limit */

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
export function probabilities(logits, { temperature, topK, topP, minP }) {
  const best = mostLikely(logits);
  if (temperature === 0) return Float32Array.from(logits, (_, token) => Number(token === best));
  const scaled = temperature === 1 ? logits.slice() : logits.map((logit) => (logit - logits[best]) / temperature);
  if (topK > 0 && topK < scaled.length) keepLargest(scaled, topK);
  if (topP < 1) keepNucleus(scaled, topP);
  if (minP > 0) keepLikely(scaled, minP);
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

// Drops the tokens less likely than minP times the most likely one, as float32 has that product.
/** @param {Float32Array} logits @param {number} minP */
function keepLikely(logits, minP) {
  const probs = softmax(logits), least = Math.fround(Math.fround(minP) * probs[mostLikely(probs)]);
  probs.forEach((prob, token) => { if (prob < least) logits[token] = -Infinity; });
}
