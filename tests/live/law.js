// law.js: the exact distribution of the texts that the page's engine writes, every draw enumerated, as `Enumerating` in
// specviz/decoding/draws.py does it. The models are tables.
import { FINAL } from '../../assets/web/live/draws.js';
import { probabilities } from '../../assets/web/live/sampling.js';
import { speculate } from '../../assets/web/live/speculate.js';

// Draws that follow a script of choices and note the alternatives.
class Enumerating {
  weight = 1; choices = []; untried = [];

  constructor(script) { this.script = script; }

  choose(weights) {
    let choice = this.script[this.choices.length];
    if (choice === undefined) {
      const [first, ...others] = [...weights.keys()].filter((outcome) => weights[outcome] > 0);
      this.untried.push(others);
      choice = first;
    }
    this.weight *= weights[choice];
    this.choices.push(choice);
    return choice;
  }

  below(threshold) {
    const chance = Math.min(1, threshold), passed = this.choose([chance, 1 - chance]) === 0;
    return { u: passed ? chance / 2 : (1 + chance) / 2, passed };
  }

  sample(row) {
    const whole = row.reduce((sum, share) => sum + share, 0);
    return this.choose(Array.from(row, (share) => share / whole));
  }
}

// Wrong ways to draw, which must not go unseen. They know the target and the sampling.
const BROKEN = {
  'draws a replacement from p': (target, sampling) => class extends Enumerating {
    numAccepted = 0;

    below(threshold) {
      const drawn = super.below(threshold);
      this.numAccepted += Number(drawn.passed);
      return drawn;
    }

    sample(row, role) {
      if (role !== FINAL) return super.sample(row);
      const own = probabilities(target.answer[this.numAccepted], sampling);
      this.numAccepted = 0;
      return super.sample(own);
    }
  },
  'accepts all': () => class extends Enumerating {
    below() { return super.below(1); }
  },
  'accepts by a fixed chance': () => class extends Enumerating {
    below() { return super.below(.6); }
  },
};

// A model whose logits depend on the last two tokens alone: table[one before the last][last] is a row.
class Table {
  calls = 0; fed = 0; answer = [];

  constructor({ table, contextLimit }) {
    this.table = table.map((rows) => rows.map((row) => Float32Array.from(row)));
    this.contextLimit = contextLimit;
  }

  forward(tokens, wanted = 1) {
    this.calls += 1;
    this.answer = Array.from({ length: wanted }, (_, at) => {
      const end = tokens.length - wanted + at;
      return this.table[tokens[end - 1] ?? 0][tokens[end]];
    });
    return this.answer;
  }
}

// All texts with their probabilities. plans: of each step, {k, draft}, a number in `drafts`; the last one stays.
export function law({ target, drafts, plans, sampling, prompt, limits, broken }) {
  const big = new Table(target), small = drafts.map((each) => new Table(each));
  const Draws = broken ? BROKEN[broken](big, sampling) : Enumerating, found = new Map(), stack = [[]];
  while (stack.length) {
    const script = stack.pop(), draws = new Draws(script), text = [];
    let asked = 0;
    const plan = () => {
      const { k, draft } = plans[Math.min(asked, plans.length - 1)];
      asked += 1;
      return { target: big, draft: k ? small[draft] : null, k, sampling };
    };
    for (const step of speculate(prompt, plan, draws, limits)) text.push(...step.tokens);
    const name = text.join(' ');
    found.set(name, (found.get(name) ?? 0) + draws.weight);
    draws.untried.forEach((others, at) => {
      for (const choice of others) stack.push([...draws.choices.slice(0, script.length + at), choice]);
    });
  }
  return [...found];
}
