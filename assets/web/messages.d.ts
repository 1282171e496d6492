// Made by `python -m specviz.views.message_types` from the records that Python sends.

/** The place where the answer ends, inside the text that was generated. */
export interface AnswerEnd {
  length: number;
  step: number;
  place: number;
  text: string;
}

/** A bar of stacked parts. */
export interface BarRow {
  label: string;
  parts: Array<["accepted" | "bonus" | "both" | "excess" | "ignored" | "p" | "plain" | "q" | "rejected" | "resampled" | "shortfall", number]>;
  values: Array<string>;
  tick: number | null;
}

/** Rows of bars, all on one scale. */
export interface BarsBlock {
  kind: "bars";
  rows: Array<BarRow>;
  heads: Array<string>;
  key: Array<[string, string]>;
  first: string;
}

/** One moment of a step. */
export interface Beat {
  name: "check" | "draft" | "judge" | "last" | "point" | "verdict";
  sentence: string;
  settled: number;
  asked?: number;
  shares?: Array<[string, number, string, boolean]>;
  numbers?: Array<[string, string]>;
  clocks: Array<[string, string]>;
}

/** A run that the browser has brought back. */
export interface BroughtRun {
  run: string;
}

/** A button that sends the section's values. */
export interface ButtonControl {
  kind: "button";
  do: string;
  label: string;
  primary: boolean;
  free: boolean;
}

/** A figure in the format of `charts.py`: {"data", "layout"} with layout.meta.title and layout.meta.table. */
export interface ChartBlock {
  kind: "chart";
  figure: Record<string, any>;
}

/** A list of options, of which one is chosen. */
export interface ChoiceControl {
  kind: "choice";
  name: string;
  label: string;
  options: Array<[string, string]>;
  value: string;
}

/** A text of a chunk, every word as its number among the chunk's words. */
export interface CodedText {
  prompt: number;
  tokens: Array<number>;
  facts: Array<Array<number>>;
  drafts: Array<TextUnderDraft>;
}

/** A whole number from `low` to `high`. */
export interface CountControl {
  kind: "count";
  name: string;
  label: string;
  value: number;
  low: number;
  high: number;
}

/** Blocks that open on demand. */
export interface DetailsBlock {
  kind: "details";
  title: string;
  blocks: Array<PageBlock>;
}

/** A text to copy or to save as a file. */
export interface DownloadBlock {
  kind: "download";
  label: string;
  file: string;
  text: string;
}

/** The game: the last turn in words, the line to type in, the score. */
export interface DraftGameBlock {
  kind: "draft_game";
  game: string;
  setup: Record<string, string>;
  prompt: string;
  most: number;
  said: Array<Array<string>>;
  join: JoinChoice | null;
  problem: string;
  typed: string;
  can_finish: boolean;
  end: string;
  tiles: Array<[string, string]>;
}

/** A stage with the text of the game. */
export interface DraftGameStageBlock {
  kind: "draft-game-stage";
  game: string;
  feed: string;
  focus: [number, string];
}

/** A part of the panel that tells how a draft was made. */
export type DraftPart = FactsPart | LinesPart | PassagePart | TreePart;

/** A random draw on the bar of a token. Places and widths are percent of the axis. */
export interface DrawOnBar {
  x: number;
  bar: number;
  fill: number;
  u: string;
  accepted: boolean;
  words?: string;
}

/** A finished run under every K from 1 on. */
export interface EveryK {
  own: number | null;
  at: number;
  sure: boolean;
  by_k: Array<OtherK>;
  tokens: Array<[string, number, string]>;
  drafted: Record<string, Array<string>>;
  kinds: Array<string>;
  labels: Array<[string, number]>;
  curve: Array<[number, number]>;
  curve_words: string;
}

/** Blocks to look at in a section that has no result of its own yet. It stands above the section's controls. */
export interface ExampleBlock {
  kind: "example";
  source: string | Array<string>;
  blocks: Array<PageBlock>;
}

/** Names, each with its value in words. */
export interface FactsPart {
  kind: "facts";
  title: string;
  items: Array<[string, string]>;
}

/** Facts about the fields, for the browser to find out whether they say how a run was made. */
export interface FieldFacts {
  counting: Record<string, Array<string>>;
  titles: Record<string, string>;
  whole: Record<string, string>;
  values: Record<string, string>;
  live: Array<string>;
  otherwise: string;
}

/** The button at the end of a lesson that leads to a game. */
export interface GameLink {
  section: string;
  words: string;
}

/** The card of a model that can be fetched. */
export interface GetCard {
  words: string;
  about: string;
  progress: ProgressBar | null;
  is_here: boolean;
}

/** A run that is not on the server any more. */
export interface GoneRun {
  gone: true;
}

/** A drafted token in the opening. Widths and places are percent of an axis that its two bars share. */
export interface GuessedToken {
  text: string;
  status: "accepted" | "ignored" | "rejected" | "scratch";
  draft: string;
  target: string;
  q: number;
  p?: number;
  draw?: number;
  fell?: string;
  longer?: boolean;
}

/** The text before the shown end of a long prompt, shown on demand. */
export interface HiddenText {
  words: string;
  text: string;
}

/** The choice to go on without a space where the text ends in a letter. */
export interface JoinChoice {
  words: Array<string>;
  label: string;
  is_on: boolean;
  letters: string;
}

/** The numbers of a run with another K. */
export interface KTotals {
  tokens_per_call: string;
  accepted: string;
  accepted_words: string;
}

/** A run for the browser to store, with its entry in the drawer. */
export interface KeptRun {
  key: string;
  title: string;
  words: string;
  facts: string;
  date: string;
  size: number;
  packed: string;
}

/** A token in the lane of its step. */
export interface LaneCell {
  ref: string;
  status: "accepted" | "bonus" | "ignored" | "plain" | "rejected" | "resampled" | "scratch";
  text: string;
  behind_end?: boolean;
  fill?: number;
  tick?: number;
  label?: string;
  say: string;
}

/** A lesson in the plan. */
export interface LessonEntry {
  clocks: [string, string | null];
  minutes: string;
  title: string;
  name: string;
  question: string;
  misconception: string;
  teacher: Array<Array<string>>;
  tasks: LessonTasks;
  number: string;
  picture: LessonPicture;
}

/** The link to all lessons in one file. */
export interface LessonFile {
  href: string;
  name: string;
  words: string;
  note: string;
}

/** A lesson for the panel beside the stage. */
export interface LessonPanel {
  name: string;
  title: string;
  question: string;
  place: string;
  live: string;
  next: NextLesson | null;
  game: GameLink | null;
  tasks: LessonTasks;
  screens: Array<LessonScreen>;
  not_live?: string;
  in_page?: Record<string, any>;
}

/** A picture of bars or of lanes; a lesson that shows no run has neither. */
export interface LessonPicture {
  words: string;
  bars?: Array<BarRow>;
  lanes?: Array<[string, Array<[string, "accepted" | "bonus" | "ignored" | "plain" | "rejected" | "resampled" | "scratch"]>]>;
}

/** One screen of a lesson. */
export interface LessonScreen {
  title: string;
  place: string;
  width: number;
  words: Array<Array<string>>;
  show: RecordedRun | null;
  compare: RunPair | null;
  lit: Array<"inspector" | "lanes" | "numbers" | "player" | "text" | "tools" | "views">;
  bars: BarsBlock | null;
  task: LessonTask | null;
}

/** A task of a lesson, and what completes it. */
export interface LessonTask {
  words: Array<string>;
  praise: string;
  kind: "choose" | "guess" | "made" | "pin" | "play" | "predict" | "see" | "throw";
  times: number;
  counts: Array<string>;
  status: Array<"accepted" | "bonus" | "ignored" | "plain" | "rejected" | "resampled" | "scratch">;
  runs: Array<RecordedRun>;
  options: Array<TaskOption>;
  reveal: string;
}

/** The tasks of a lesson. */
export interface LessonTasks {
  places: Array<number>;
  words: Array<string>;
}

/** The lessons, games and breaks in the plan's order. */
export interface LessonsBlock {
  kind: "lessons";
  entries: Array<PlanEntry>;
  ways: Array<string>;
  file: LessonFile | null;
}

/** How much one browser stores. */
export interface LibraryLimits {
  most_runs: number;
  most_bytes: number;
  most_opened: number;
  let_go: string;
}

/** A text of several lines. */
export interface LinesControl {
  kind: "lines";
  name: string;
  label: string;
  value: string;
  hint: string;
  most: number;
}

/** Lines of tokens. */
export interface LinesPart {
  kind: "lines";
  title: string;
  lead: string;
  note: string;
  lines: Array<[string, Array<[string, string, string]>, string]>;
  aligned: boolean;
}

/** Links to files of this server. */
export interface LinksBlock {
  kind: "links";
  entries: Array<[string, string]>;
}

/** What the live page begins with; the weights follow when they are needed. */
export interface LiveContent {
  words: LiveWords;
  tokenizer: Record<string, any>;
  configs: Record<string, any>;
}

/** A ready prompt. */
export interface LivePrompt {
  title: string;
  text: string;
}

/** The parts of a trace of this page that are always the same. */
export interface LiveTemplate {
  target: string;
  eos: number;
  tokenizer_sha: string;
  header: Record<string, any>;
  settings: Record<string, any>;
}

/** The words of the live page. */
export interface LiveWords {
  head: RunHead;
  code: string;
  statuses: Record<string, string>;
  sentences: Record<string, string>;
  speech: Record<string, string>;
  cell: Record<string, string>;
  headlines: Array<[Array<string>, Array<string>]>;
  promise: string;
  models: Record<string, string>;
  drafts: Record<string, string>;
  prompts: Array<LivePrompt>;
  changes: Record<string, string>;
  accepted: string;
  speed: string;
  passes: string;
  endings: Record<string, string>;
  template: LiveTemplate;
}

/** The tokens of a look, column by column: labels, widths in percent of the axis, places on the log axis. */
export interface LookRows {
  text: Array<string>;
  role: Array<string>;
  p: Array<string>;
  p_dot: Array<number | null>;
  q?: Array<string>;
  q_dot?: Array<number | null>;
  both?: Array<number>;
  excess?: Array<number>;
  shortfall?: Array<number>;
  distribution?: Array<number>;
  p_raw?: Array<number | null>;
  q_raw?: Array<number | null>;
}

/** How the draft of a step was made. */
export interface MadeDraft {
  lead: Array<string>;
  parts: Array<TreePart | LinesPart | FactsPart | PassagePart>;
}

/** What a method does, when it pays, and how its drafts are judged. */
export interface MethodHelp {
  title: string;
  summary: string;
  caution: string;
  sources: Array<[string, string | null]>;
  lacks: string;
  rule: RuleHelp | null;
  notes: Array<string>;
}

/** The run that shows a method at its best, in words, and what it is asked for by. */
export interface MethodShowcase {
  words: string;
  method: string;
  target: string;
}

/** The lesson that follows in the plan. */
export interface NextLesson {
  name: string;
  title: string;
}

/** A button under a run that is over. It pins a token, makes another run or saves a picture. */
export interface NextStep {
  does: "picture" | "pin" | "run";
  words: Array<string>;
  note?: string;
  at?: TokenPlace;
  asks?: Record<string, number | string>;
  shows?: PictureWords;
}

/** Why no other K can be told of a run. */
export interface NoOtherK {
  refusal: string;
  why: string;
}

/** One step, explained beat by beat. */
export interface Opening {
  step: number;
  title: string;
  question: string;
  before: string;
  drafter: [string, string];
  target: [string, string];
  tokens: Array<GuessedToken>;
  filled?: "in turn" | "together";
  last?: [string, "accepted" | "bonus" | "plain" | "resampled"];
  beats: Array<Beat>;
  race?: RaceToAlone;
  run: string;
  note: string;
}

/** What a text is with another K: the steps of a real run, or each token's chance. */
export interface OtherK {
  k: number;
  sentence: Array<string>;
  totals: KTotals;
  steps?: Array<[number, number, number]>;
  chances?: Array<number>;
}

/** A part of a section that a person reads. */
export type PageBlock = BarsBlock | ChartBlock | DetailsBlock | DownloadBlock | DraftGameBlock | DraftGameStageBlock | ExampleBlock | LessonsBlock | LinksBlock | PlacesBlock | PredictBlock | ProgressBlock | SegmentsBlock | SideBySideBlock | TableBlock | TextsBlock | VerdictBlock | WordsBlock;

/** A QR code by which others open a page of this server. */
export interface PageCode {
  words: string;
  address: string;
  picture: string;
}

/** A field or a button of a section. A person sets the fields before pressing a button of the same section. */
export type PageControl = ButtonControl | ChoiceControl | CountControl | LinesControl;

/** What a report page is told: the sections that changed, and what goes on. */
export interface PageMessage {
  sections: Array<PageSection>;
  order?: Array<string>;
  busy: string | null;
  say: string;
  number?: number;
}

/** A section of a page. */
export interface PageSection {
  id: string;
  title: string;
  lead: string | Array<string>;
  controls: Array<PageControl>;
  blocks: Array<PageBlock>;
  options: Array<PageControl>;
  takes: string;
}

/** Why a panel does not get what it asked for. */
export interface PanelRefusal {
  refusal: string;
}

/** A text of several lines. */
export interface PassagePart {
  kind: "passage";
  title: string;
  text: string;
  mark: string;
  note: string;
}

/** A break or a game between two lessons. */
export interface PauseEntry {
  clocks: [string, string | null];
  minutes: string;
  title: string;
  words: string;
  section: string;
}

/** What a picture of a run has beside its tokens. */
export interface PictureWords {
  question: string;
  start: string;
}

/** A token in a text of the `texts` block of the same page. */
export interface PlaceInText {
  text: number;
  draft: number;
  token: number;
}

/** A link to a place of this page. */
export interface PlaceLink {
  href: string;
  title: string;
  words: string;
  facts: string;
}

/** A draft token with its verdict. */
export interface PlaceToGuess {
  step: number;
  ref: string;
  before: Array<[string, "accepted" | "bonus" | "plain" | "rejected" | "resampled"]>;
  after: Array<[string, "accepted" | "bonus" | "plain" | "rejected" | "resampled"]>;
  ask: TokenLook;
  look: TokenLook;
  accepted: boolean;
  bet: string;
}

/** Links to places of this page. */
export interface PlacesBlock {
  kind: "places";
  entries: Array<PlaceLink>;
}

/** An entry of the plan. */
export type PlanEntry = LessonEntry | PauseEntry;

/** The contents of the player of two runs. */
export interface PlayerData {
  sides: Array<PlayerSide>;
  modes: Array<PlayerMode>;
  part: number | null;
  parted: Array<string>;
}

/** A place of the player. */
export type PlayerFrame = [string, Array<number>, number | null];

/** A way in which the player moves both runs. */
export interface PlayerMode {
  name: "time" | "token";
  label: string;
  frames: Array<PlayerFrame>;
  paces: Array<PlayerPace>;
  ends: Array<string>;
  rest: number;
}

/** A speed of the player. */
export type PlayerPace = [string, number, boolean];

/** A run on its stage. */
export interface PlayerSide {
  title: string;
  said: Array<string>;
  widths: Array<number>;
  message: RunMessage;
}

/** The game over some runs. */
export interface PredictBlock {
  kind: "predict";
  runs: Array<[string, string]>;
  look_numbers: Array<[string, string]>;
  log_ticks: Array<[number, string]>;
}

/** A recorded run as a game. */
export interface PredictGame {
  prompt: string;
  places: Array<PlaceToGuess>;
  learned: Array<string>;
}

/** What a button in a table does: the same as a button of the section, with these values. */
export interface Press {
  section: string;
  do: string;
  values: Record<string, string>;
}

/** How far work has come. */
export interface ProgressBar {
  width: number;
  words: string;
}

/** The progress of long work, with a button that stops it. */
export interface ProgressBlock {
  kind: "progress";
  width: number;
  words: string;
}

/** The text as it grew here, and as it grows with the target alone at its measured pace. */
export interface RaceToAlone {
  tokens: Array<[string, "accepted" | "bonus" | "plain" | "resampled", number, number]>;
  here: string;
  alone: string;
  words: string;
}

/** A recorded run that a lesson shows. */
export interface RecordedRun {
  run: string;
  id: string;
  title: string;
  about: string;
  pin: TokenPlace | null;
}

/** The mark in a lane for a whole reasoning step that the target rejected. */
export interface RefusedStep {
  text: Array<string>;
  say: string;
}

/** What an acceptance rule means. */
export interface RuleHelp {
  title: string;
  badge: "exact" | "lossy";
  meaning: string;
  summary: string;
}

/** What the button Run says while nothing is changed. */
export interface RunButton {
  words: string;
  missing: string;
  needs: Array<string>;
}

/** Why a run ended. */
export interface RunEnd {
  reason: "context" | "cut" | "eos" | "error" | "length" | "stop" | "stopped" | "time";
  words: string;
  answer?: AnswerEnd;
  next: Array<NextStep>;
}

/** A run that is over, in words. */
export interface RunEntry {
  title: string;
  words: string;
  facts: string;
  date: string;
}

/** What a run's file tells about its parts. */
export interface RunFileIndex {
  starts: Array<number>;
  selection: TokenPlace | null;
  file: string;
}

/** What a stage is told once, before the first step. */
export interface RunHead {
  prompt: Array<[string, string]>;
  hidden?: HiddenText;
  is_code: boolean;
  recorded: boolean;
  legend: Array<[string, string, string]>;
  figures: Record<string, Record<string, any>>;
  metrics: Array<[string, string, string]>;
  look_numbers: Array<[string, string]>;
  log_ticks: Array<[number, string]>;
}

/** An increment of a run: what the stage does not have yet. */
export interface RunMessage {
  run: string;
  from: number;
  total: number;
  head?: RunHead;
  speed: SpeedWords;
  numbers: Array<string>;
  end?: RunEnd;
  done?: number;
  state?: RunState;
  play?: boolean;
  opening?: boolean;
  back?: boolean;
  steps?: Array<ShownStep>;
}

/** The explanations of all steps of a recorded run. */
export interface RunOpenings {
  telling: number;
  steps: Array<Opening>;
}

/** Two recorded runs that a lesson shows side by side. */
export interface RunPair {
  runs: [RecordedRun, RecordedRun];
}

/** What a run does at this moment. */
export interface RunState {
  name: "finished" | "loading" | "paused" | "queued" | "running";
  message: string | null;
  ahead: number;
  fraction: number | null;
  words: string;
  progress: ProgressBar | null;
}

/** A text divided into steps for every K, which the block's slider chooses. */
export interface SegmentsBlock {
  kind: "segments";
  tokens: Array<string>;
  by_k: Record<string, TextDivision>;
  k: number;
}

/** The ways to share a run. */
export interface ShareOffer {
  link: string | null;
  page: string | null;
  words: Array<string>;
  files: Array<[string, string, string, string]>;
}

/** The line over the stage for a link that came. */
export interface SharedRunLine {
  state: "differs" | "other" | "ready" | "refused" | "same" | "unknown" | "waiting";
  words: Array<string>;
  at: TokenPlace | null;
}

/** A recorded run that comes with specviz, in words. */
export interface ShippedEntry {
  name: string;
  title: string;
  words: string;
  facts: string;
}

/** One step: its lane, its text, its bar, the totals after it, and what the inspector shows. */
export interface ShownStep {
  index: number;
  k: number;
  filled?: "in turn" | "together";
  cells: Array<LaneCell>;
  more: number;
  more_words: Array<string>;
  refused: RefusedStep | null;
  last: LaneCell | null;
  cut_off: number;
  pieces: Array<[string, "accepted" | "bonus" | "plain" | "rejected" | "resampled", string]>;
  looks: Record<string, TokenLook>;
  focus: string;
  has_rejected: boolean;
  drawless: boolean;
  whole: boolean;
  bar: StepBar;
  totals: StepTotals;
  say: string;
  made?: MadeDraft;
  changes: Array<string>;
  sentence?: Array<string>;
  context?: Array<[string, string]>;
  points?: Record<string, Record<string, any>>;
  written: string;
}

/** Two runs on two stages that one player moves. */
export interface SideBySideBlock {
  kind: "side_by_side";
  by: "time" | "token";
  titles: Array<string>;
  data: string;
}

/** What a page without a server shows, apart from its runs. */
export interface SiteContent {
  lessons: Record<string, LessonPanel>;
  pages: Record<string, PageMessage>;
  runs: Array<string>;
  pairs: Array<string>;
}

/** The speed of a run against its target alone; without a ratio, value is "" and words says why. */
export interface SpeedWords {
  value: string;
  words: string;
  note: string;
  can_measure: boolean;
  progress: ProgressBar | null;
}

/** What the bar says of the run that stands on the stage. */
export interface StandingRun {
  words: string;
  missing: string;
  needs: Array<string>;
  about: FieldFacts;
  made?: Record<string, string | number | null>;
}

/** How many drafted tokens of a step have each status. */
export interface StepBar {
  accepted: number;
  rejected: number;
  ignored: number;
  refused: number;
}

/** The numbers of the run after a step. */
export interface StepTotals {
  tokens_per_call: string;
  accepted: string;
  accepted_words: string;
  accepted_share: number | null;
  counts: Record<string, number>;
}

/** A run that the browser has stored already. */
export interface StoredRun {
  key: string;
}

/** A table; the first column names the row. */
export interface TableBlock {
  kind: "table";
  columns: Array<string>;
  rows: Array<Array<string | TableCell>>;
  caption: string;
  marked: number;
  sortable: boolean;
}

/** A cell that is more than its text. */
export interface TableCell {
  text: string | Array<string>;
  sort: number | string | null;
  tone?: "accepted" | "bonus" | "both" | "excess" | "ignored" | "p" | "plain" | "q" | "rejected" | "resampled" | "shortfall";
  opens?: PlaceInText;
  does?: Press;
}

/** An answer of a task. */
export interface TaskOption {
  why: string;
  words: string;
  right: boolean;
}

/** Some of the texts of a `texts` block. */
export interface TextChunk {
  words: Array<string>;
  texts: Array<CodedText>;
}

/** A text divided into the steps of one K. */
export interface TextDivision {
  lengths: Array<number>;
  kinds: Array<string>;
  words: string | Array<string>;
}

/** A text of a chunk under one draft model. */
export interface TextUnderDraft {
  words: number;
  steps: string;
  facts: Array<Array<number>>;
}

/** Many texts, of which one is shown token by token under one of the draft models. */
export interface TextsBlock {
  kind: "texts";
  entries: Array<[string, string]>;
  chunks: Array<string>;
  numbers: Array<number>;
  per_chunk: number;
  drafts: Array<string>;
  facts: Array<string>;
  draft_facts: Array<string>;
  key: Array<[string, string]>;
  rest: string;
}

/** What the inspector shows of a token. */
export interface TokenLook {
  status: "accepted" | "bonus" | "ignored" | "plain" | "rejected" | "resampled" | "scratch" | "undecided";
  view: "draw" | "overlay" | "threshold" | "words";
  title: Array<string>;
  note?: Array<string>;
  heading?: "judged" | "share" | "target";
  axis?: Array<[number, string]>;
  rows?: LookRows;
  numbers?: Array<string>;
  siblings?: Array<[string, string, string, string, string, string]>;
  draw?: DrawOnBar;
  zoom?: DrawOnBar;
  foot?: [number, string, string];
}

/** A token of the run on the stage. */
export interface TokenPlace {
  step: number;
  ref: string;
}

/** A node in the drawing of a token tree. */
export type TreeNode = [string, string, "accepted" | "ignored" | "rejected" | "scratch", number, number, number, string, number, number, string];

/** The drawing of a token tree; a column is a depth. */
export interface TreePart {
  kind: "tree";
  title: string;
  note: string;
  rows: number;
  heads: Array<string>;
  whose: string;
  nodes: Array<TreeNode>;
}

/** The outcome of a check; a mark and a colour come with the state. */
export interface VerdictBlock {
  kind: "verdict";
  state: "consistent" | "differs" | "exact" | "suspicious" | "unsure";
  words: string | Array<string>;
}

/** A paragraph. */
export interface WordsBlock {
  kind: "words";
  words: string | Array<string>;
  small: boolean;
  passing?: boolean;
  stopped?: boolean;
}
