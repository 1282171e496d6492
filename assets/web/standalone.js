// standalone.js: what every page that lies in one file needs (its texts, its theme, large type for a room, plotly
// unpacked when the first chart comes into sight), and the page of sections, compressed. No server, no network.
'use strict';
(() => {
  const { element } = window.specviz;
  const text = (id) => document.getElementById(id)?.textContent;
  let library = null;

  // in place of a request: the library as a script of this very page
  function unpackPlotly() {
    library = library || window.specviz.unpack(text('sv-plotly')).then((source) => {
      const script = element('script', '', source);
      document.head.append(script);
      if (!window.Plotly) throw new Error('plotly did not run');
    });
    return library;
  }

  function theme(button) {
    const dark = window.matchMedia('(prefers-color-scheme: dark)');
    const set = (isDark) => {
      document.body.classList.toggle('dark', isDark);
      button.setAttribute('aria-pressed', String(isDark));
    };
    set(dark.matches);
    dark.addEventListener('change', () => set(dark.matches));
    button.addEventListener('click', () => set(!document.body.classList.contains('dark')));
  }

  // large type for a room; Escape ends it
  function present(button) {
    const { documentElement: root } = document;
    const toggle = () => {
      button.setAttribute('aria-pressed', String(root.toggleAttribute('data-sv-present')));
      window.dispatchEvent(new Event('resize'));
    };
    window.specvizPage = { present: toggle };          // the stage's own key asks for it
    button.addEventListener('click', toggle);
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && root.hasAttribute('data-sv-present')) toggle();
    });
  }

  // a stage in a file that holds no charts
  function withoutCharts(stage) {
    stage.querySelector('.sv-charts').remove();
    window.specviz.views.charts = () => {};
  }

  // Before anything is shown: the palette, where plotly lies, the theme. Then `show`, which may take a while.
  // unreadable: where it is said that the browser is too old.
  async function open(unreadable, show) {
    window.specviz.palette = JSON.parse(text('sv-palette'));
    if (text('sv-plotly')) window.specviz.figure.load = unpackPlotly;
    theme(document.getElementById('sv-theme'));
    try { await show(); } catch (error) {
      unreadable.append(element('p', '', 'This page could not be unpacked: it takes a browser of 2023 or later.'));
      throw error;
    }
    document.documentElement.dataset.done = 'yes';
  }

  function contents(list, holder) {
    list.append(...[...holder.querySelectorAll('.sv-section')].map((section) => {
      const link = element('a', '', section.querySelector('h2').textContent), entry = element('li');
      section.id = `part-${section.dataset.section}`;
      link.href = `#${section.id}`;
      entry.append(link);
      return entry;
    }));
  }

  window.specviz.inFile = { text, open, present, withoutCharts };
  window.specviz.mountStandalone = () => {
    const holder = document.getElementById('sv-page');
    return open(holder.querySelector('.sv-report-body'), async () => {
      const value = await window.specviz.unpack(text('sv-data'));
      window.specviz.mountReport(holder, { props: { value }, watch: () => {}, trigger: () => {}, place: () => null });
      contents(document.getElementById('sv-contents'), holder);
    });
  };
})();
