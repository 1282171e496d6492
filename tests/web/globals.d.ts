// What the pages' scripts find in the browser, beside what every browser has.

interface Window {
  Plotly?: any; // the library has no types of its own, and figures arrive computed
  specvizPage?: Record<string, unknown>; // what the parts that Python mounts are started by
}

// Elements are HTML where a selector does not name another kind. A caller that knows more says it in a type.
interface ParentNode {
  querySelector<K extends keyof HTMLElementTagNameMap>(selectors: K): HTMLElementTagNameMap[K] | null;
  querySelector<K extends keyof SVGElementTagNameMap>(selectors: K): SVGElementTagNameMap[K] | null;
  querySelector<E extends Element = HTMLElement>(selectors: string): E | null;
  querySelectorAll<K extends keyof HTMLElementTagNameMap>(selectors: K): NodeListOf<HTMLElementTagNameMap[K]>;
  querySelectorAll<K extends keyof SVGElementTagNameMap>(selectors: K): NodeListOf<SVGElementTagNameMap[K]>;
  querySelectorAll<E extends Element = HTMLElement>(selectors: string): NodeListOf<E>;
}

interface DocumentEventMap {
  "sv-opened": CustomEvent<string>; // where a person goes on from the opening: "run", "why" or ""
}

interface HTMLElementEventMap {
  "sv-open": CustomEvent<import("../../assets/web/messages.d.ts").PlaceInText>; // on a report page: a cell opens a text there
}
