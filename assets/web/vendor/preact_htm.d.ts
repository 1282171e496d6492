// What the views take from preact_htm.js, for a type checker. No page loads this.
export interface VNode {
  type: string | ((props: any) => Child);
  props: Record<string, any>;
}
export type Child = VNode | string | number | boolean | null | undefined | Child[];
export interface Ref<T> {
  current: T;
}
type Cleanup = () => void;

export function h(type: VNode['type'], props: Record<string, any> | null, ...children: Child[]): VNode;
export function html(parts: TemplateStringsArray, ...values: unknown[]): VNode;
export function render(drawn: Child, place: Element): void;
export function useState<T>(first: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useRef<T>(first?: T): Ref<T>;
export function useEffect(work: () => void | Cleanup, inputs?: unknown[]): void;
export function useLayoutEffect(work: () => void | Cleanup, inputs?: unknown[]): void;
