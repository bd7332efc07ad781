package sample

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Table is a Markdown table under construction.
type Table struct {
	rows [][]string
}

// NewTable starts a table with its column heads.
func NewTable(heads ...string) *Table { return &Table{rows: [][]string{heads}} }

// Add appends a row; missing cells are empty, and what has no column is left out.
func (t *Table) Add(cells ...string) {
	row := make([]string, len(t.rows[0]))
	copy(row, cells)
	t.rows = append(t.rows, row)
}

// String is the table with columns of even width.
func (t *Table) String() string {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(escaped(cell)), len("---"))
		}
	}
	var b strings.Builder
	for n, row := range t.rows {
		for i, cell := range row {
			cell = escaped(cell)
			b.WriteString("| " + cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)) + " ")
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, w := range widths {
				b.WriteString("|" + strings.Repeat("-", w+2))
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}

func escaped(cell string) string { return strings.ReplaceAll(cell, "|", `\|`) }

// Milliseconds formats a duration for a table.
func Milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}

// Microseconds formats a duration for a table.
func Microseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond))
}

// Seconds formats a duration for a table.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()) }

// MiB formats a number of bytes for a table.
func MiB(bytes int64) string {
	const mib = 1 << 20
	return fmt.Sprintf("%.1f", float64(bytes)/mib)
}

// Times formats a ratio for a table.
func Times(ratio float64) string { return fmt.Sprintf("%.2f ×", ratio) }
