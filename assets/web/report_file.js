// report_file.js: a page of sections in a file of its own, compressed.
import { element } from './core/element.js';
import { unpack } from './core/files.js';
import { mountReport } from './reports/report.js';
import { fileText, openFile } from './share/one_file.js';

const READY_MS = 1000; // after which all charts are drawn

function contents(list, holder) {
  list.append(...[...holder.querySelectorAll('.sv-section')].map((section) => {
    const link = element('a', '', section.querySelector('h2').textContent), entry = element('li');
    section.id = `part-${section.dataset.section}`;
    link.href = `#${section.id}`;
    entry.append(link);
    return entry;
  }));
}

const holder = document.getElementById('sv-page');
openFile(holder.querySelector('.sv-report-body'), async () => {
  const value = await unpack(fileText('sv-data'));
  mountReport(holder, { props: { value }, watch: () => {}, trigger: () => {}, place: () => null });
  contents(document.getElementById('sv-contents'), holder);
  setTimeout(() => dispatchEvent(new Event('beforeprint')), READY_MS); // the printer waits for no chart
});
