// hub.js: the page's one state. It takes increments from a supplier, heals holes, keeps the player's place and the
// selection, and tells the views. Views register a function here and are mounted by stage.js. No formula, no markup.
const PACES = { slow: 1000, reading: 250, fast: 80 };      // milliseconds per step of the player
const OPENING = { steps: 3, milliseconds: 2200 };          // a first visit begins slowly
const FULL = 850, SHORT = 150;                             // time for all phases of a step, or only for a fade

const parse = (value) => {
  if (typeof value !== 'string') return value || null;
  try { return value ? JSON.parse(value) : null; } catch (error) { return null; }
};

// Supplier 1: Gradio's value, one increment at a time, and a pull for what was missed.
export const streamSource = ({ props, watch, server }) => ({
  start(take) {
    const read = () => take(parse(props.value));
    watch('value', read);
    read();
  },
  pull: async (request) => (server && server.since ? server.since(request) : null),
});

// Supplier 2: a whole run that lies in the page.
export const embeddedSource = (message) => ({
  start(take) { take(parse(message)); },
  pull: async () => null,
});

export function createHub(source) {
  const listeners = new Map();
  const hub = {
    run: null, head: null, steps: [], state: null, speed: null, numbers: null, end: null, total: 0,
    cursor: 0, following: true, playing: false, pace: 'reading', rhythm: 0,
    pinned: null, hovered: null, spot: -1,          // spot: the step that was last moved to or pinned
  };
  let pulling = false, timer = 0, arrived = 0, autoPinned = false, opening = 0;
  let wasLive = false, found = 0;                   // found: how many steps a run has that was over when it came

  hub.on = (name, listener) => {
    if (!listeners.has(name)) listeners.set(name, []);
    listeners.get(name).push(listener);
  };
  hub.emit = (name, detail) => (listeners.get(name) || []).forEach((listener) => listener(detail));

  // ---- taking increments -------------------------------------------------------------------------------------
  function reset(run) {
    stopTimer();
    Object.assign(hub, {
      run, head: null, steps: [], state: null, speed: null, numbers: null, end: null, total: 0,
      cursor: 0, following: true, playing: false, rhythm: 0, pinned: null, hovered: null, spot: -1,
    });
    autoPinned = false;
    opening = 0;
    arrived = 0;
    wasLive = false;
    found = 0;
    hub.emit('reset');
  }

  function append(from, steps) {
    if (from > hub.steps.length) return false;
    const fresh = steps.slice(hub.steps.length - from);
    for (const step of fresh) {
      const before = hub.steps[hub.steps.length - 1] || {};
      step.sentence = step.sentence || before.sentence;   // carried on while nothing changes
      step.context = step.context || before.context;
      hub.steps.push(step);
    }
    if (fresh.length) hub.emit('grow', { from: hub.steps.length - fresh.length });
    return true;
  }

  function take(message, { heal = true } = {}) {
    if (!message || typeof message.run !== 'string' || !message.run) return;
    if (message.run !== hub.run) reset(message.run);
    if (message.head && !hub.head) {
      hub.head = message.head;
      hub.emit('head');
    }
    for (const name of ['state', 'speed', 'numbers', 'end']) {
      if (message[name] !== undefined) hub[name] = message[name];
    }
    wasLive = wasLive || Boolean(hub.state && hub.state.name !== 'finished');
    hub.total = message.total === undefined ? hub.total : message.total;
    const before = hub.steps.length;
    const whole = append(message.from, message.steps || []);
    const added = hub.steps.length - before;
    if (message.play && before === 0 && added) return replay();
    if (before === 0 && added && !wasLive) found = hub.total;
    if (added) follow(added);
    hub.emit('info');
    if (message.opening && before === 0 && added) hub.emit('opening');
    if (heal && (!whole || lacks())) pull();
  }

  const lacks = () => !hub.head || hub.steps.length < hub.total;

  async function pull() {
    if (pulling || !hub.run) return;
    pulling = true;
    const run = hub.run, from = hub.head ? hub.steps.length : 0, known = hub.steps.length, hadHead = Boolean(hub.head);
    let answer = null;
    try { answer = parse(await source.pull({ run, from })); } catch (error) { answer = null; } finally { pulling = false; }
    if (!answer || answer.run !== run || hub.run !== run) return;
    take({ ...answer, total: hub.total > answer.total ? hub.total : answer.total }, { heal: false });
    const isHealing = hub.steps.length > known || (!hadHead && hub.head);
    if (isHealing && lacks()) pull();
  }

  // ---- the player's place ------------------------------------------------------------------------------------
  function follow(added) {
    const now = performance.now(), gap = arrived ? now - arrived : FULL;
    arrived = now;
    if (!hub.following || hub.playing) return;
    place(hub.steps.length, added === 1 ? gap : 0);
    if (found !== hub.total) return;
    hub.spot = hub.selected().step;                         // the place that is explained is seen, not the end
    hub.emit('select', { how: 'found' });
  }

  function place(cursor, rhythm) {
    const from = hub.cursor;
    const bounded = cursor < 0 ? 0 : cursor > hub.steps.length ? hub.steps.length : cursor;
    if (bounded === from) return;
    hub.cursor = bounded;
    hub.spot = bounded - 1;
    hub.rhythm = bounded === from + 1 && rhythm >= SHORT ? rhythm : 0;
    hub.emit('cursor', { from, to: bounded });
    pinFirstCut(from, bounded);
    hub.emit('select');
  }

  function pinFirstCut(from, to) {
    if (autoPinned || hub.pinned) return;
    for (let index = from; index < to; index += 1) {
      if (hub.steps[index].has_cut) {
        autoPinned = true;
        hub.pinned = { step: index, ref: hub.steps[index].focus };
        return;
      }
    }
  }

  function stopTimer() {
    clearTimeout(timer);
    timer = 0;
    hub.playing = false;
  }

  function wait() { return opening > 0 ? OPENING.milliseconds : PACES[hub.pace] || PACES.reading; }

  function tick() {
    if (!hub.playing) return;
    if (hub.cursor >= hub.steps.length) return settle();
    const time = wait();
    opening -= 1;
    place(hub.cursor + 1, time);
    timer = setTimeout(tick, time);
  }

  function settle() {
    stopTimer();
    hub.following = true;
    hub.emit('info');
  }

  function replay() {
    opening = OPENING.steps;
    hub.following = false;
    hub.playing = true;
    hub.emit('info');
    if (lacks()) pull();
    tick();
  }

  hub.seek = (cursor, { animate = false } = {}) => {
    stopTimer();
    opening = 0;
    hub.following = cursor >= hub.steps.length;
    place(cursor, animate ? 1e9 : 0);
    hub.emit('info');
  };
  hub.first = () => hub.seek(1, { animate: true });
  hub.back = () => hub.seek(hub.cursor > 1 ? hub.cursor - 1 : 1);
  hub.forward = () => hub.seek(hub.cursor + 1, { animate: true });
  hub.last = () => hub.seek(hub.steps.length);
  hub.toggle = () => {
    if (hub.playing) {
      stopTimer();
      opening = 0;
    } else if (hub.steps.length) {
      if (hub.cursor >= hub.steps.length) place(0, 0);
      hub.following = false;
      hub.playing = true;
      tick();
    }
    hub.emit('info');
  };
  hub.setPace = (pace) => { if (PACES[pace]) hub.pace = pace; };
  hub.phases = () => (hub.rhythm >= FULL ? 'full' : hub.rhythm ? 'short' : 'none');
  hub.isLive = () => Boolean(hub.state && ['queued', 'loading', 'running'].includes(hub.state.name));

  // ---- the selection: hover looks, a click pins, Escape lets go ------------------------------------------------
  const isShown = (place_) => Boolean(place_ && place_.step < hub.cursor);
  hub.selected = () => {
    if (isShown(hub.hovered)) return hub.hovered;
    if (isShown(hub.pinned)) return hub.pinned;
    const step = hub.steps[hub.cursor - 1];
    return step ? { step: hub.cursor - 1, ref: step.focus } : null;
  };
  hub.look = () => {
    const place_ = hub.selected();
    return place_ ? hub.steps[place_.step].looks[place_.ref] || null : null;
  };
  hub.hover = (place_) => {
    if (!place_ && !hub.hovered) return;
    hub.hovered = place_;
    hub.emit('select');
  };
  hub.hoverStep = (step) => hub.hover(hub.steps[step] ? { step, ref: hub.steps[step].focus } : null);
  hub.pin = (step, ref, how = 'pointer') => {
    if (!hub.steps[step]) return;
    autoPinned = true;
    hub.hovered = null;
    hub.pinned = { step, ref };
    if (step >= hub.cursor) hub.seek(step + 1);
    hub.spot = step;
    hub.emit('select', { how });
  };
  hub.release = () => {
    autoPinned = true;
    hub.hovered = null;
    hub.pinned = null;
    hub.spot = hub.cursor - 1;
    hub.emit('select', { how: 'release' });
  };
  hub.refs = (step) => {
    const props = hub.steps[step];
    return props ? [...props.cells.map((cell) => cell.ref), ...(props.last ? [props.last.ref] : [])] : [];
  };
  // Along the tokens of a step and over its ends.
  hub.moveToken = (by) => {
    const place_ = hub.selected();
    if (!place_) return;
    const refs = hub.refs(place_.step), next = refs.indexOf(place_.ref) + by;
    if (next >= 0 && next < refs.length) return hub.pin(place_.step, refs[next], 'key');
    const step = place_.step + by, others = hub.refs(step);
    if (others.length && step < hub.cursor) hub.pin(step, by > 0 ? others[0] : others[others.length - 1], 'key');
  };
  hub.moveStep = (by) => {
    const place_ = hub.selected();
    if (place_) hub.pinStep(place_.step + by);
  };
  hub.pinStep = (step) => {
    if (hub.steps[step] && step < hub.cursor) hub.pin(step, hub.steps[step].focus, 'key');
  };

  hub.start = () => source.start(take);
  hub.take = take;
  return hub;
}
