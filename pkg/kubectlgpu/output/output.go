// Package output prints what the commands found: as text for people, or as an object in one of
// kubectl's formats. It is for the commands. It must not know what it prints.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// APIVersion is that of the objects that commands print with -o json and the like.
const APIVersion = "kubectl-gpu/v1alpha1"

// Result is what a command found.
type Result interface {
	// Kind names the printed object.
	Kind() string
	// Text writes the result for people; wide asks for what does not fit 100 columns.
	Text(out io.Writer, wide bool) error
}

// Flags choose the format.
type Flags struct{ kubectl *genericclioptions.PrintFlags }

// NewFlags makes flags whose default is text.
func NewFlags() *Flags {
	flags := genericclioptions.NewPrintFlags("")
	// There is nothing that kubectl could find by a printed name.
	flags.NamePrintFlags = nil
	return &Flags{kubectl: flags}
}

const wide = "wide"

// formats are what -o takes besides nothing.
func (f *Flags) formats() []string {
	all := append(f.kubectl.JSONYamlPrintFlags.AllowedFormats(), f.kubectl.TemplatePrinterFlags.AllowedFormats()...)
	slices.Sort(all)
	return append([]string{wide}, all...)
}

// AddTo adds -o and what belongs to it to a command.
func (f *Flags) AddTo(cmd *cobra.Command) {
	f.kubectl.JSONYamlPrintFlags.AddFlags(cmd)
	f.kubectl.TemplatePrinterFlags.AddFlags(cmd)
	for _, name := range []string{"show-managed-fields", "allow-missing-template-keys", "template"} {
		if flag := cmd.Flags().Lookup(name); flag != nil {
			flag.Hidden = true
		}
	}
	cmd.Flags().StringVarP(f.kubectl.OutputFormat, "output", "o", "", "output format: "+strings.Join(f.formats(), ", ")+"; text when empty")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(f.formats(), cobra.ShellCompDirectiveNoFileComp))
}

// Print writes a result in the chosen format.
func (f *Flags) Print(result Result, out io.Writer) error {
	switch format := *f.kubectl.OutputFormat; format {
	case "", wide:
		return result.Text(out, format == wide)
	default:
		printer, err := f.printer()
		if genericclioptions.IsNoCompatiblePrinterError(err) {
			return fmt.Errorf("-o %s is none of %s", format, strings.Join(f.formats(), ", "))
		}
		if err != nil {
			return fmt.Errorf("-o %s: %w", format, err)
		}
		object, err := asObject(result)
		if err != nil {
			return err
		}
		return printer.PrintObj(object, out)
	}
}

func (f *Flags) printer() (printers.ResourcePrinter, error) {
	format := *f.kubectl.OutputFormat
	if p, err := f.kubectl.JSONYamlPrintFlags.ToPrinter(format); err == nil {
		return p, nil
	}
	return f.kubectl.TemplatePrinterFlags.ToPrinter(format)
}

// asObject makes the object that the printers of kubectl take.
func asObject(result Result) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", result.Kind(), err)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &object.Object); err != nil {
		return nil, fmt.Errorf("render %s: %w", result.Kind(), err)
	}
	object.SetAPIVersion(APIVersion)
	object.SetKind(result.Kind())
	return object, nil
}

// Table collects rows for people.
type Table struct{ table metav1.Table }

// NewTable makes a table; columns whose name begins with "+" are for wide output only.
func NewTable(columns ...string) *Table {
	t := &Table{}
	for _, name := range columns {
		column := metav1.TableColumnDefinition{Name: strings.TrimPrefix(name, "+"), Type: "string"}
		if column.Name != name {
			column.Priority = 1
		}
		t.table.ColumnDefinitions = append(t.table.ColumnDefinitions, column)
	}
	return t
}

// Row adds a row; empty cells are shown as "-".
func (t *Table) Row(cells ...string) {
	row := metav1.TableRow{}
	for _, c := range cells {
		if c == "" {
			c = "-"
		}
		row.Cells = append(row.Cells, c)
	}
	t.table.Rows = append(t.table.Rows, row)
}

// Write prints the table.
func (t *Table) Write(out io.Writer, wide bool) error {
	return printers.NewTablePrinter(printers.PrintOptions{Wide: wide}).PrintObj(&t.table, out)
}

// Writer keeps the first error of many writes, so that text can be written line by line.
type Writer struct {
	out io.Writer
	Err error
}

// NewWriter makes a writer.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Printf writes formatted text, unless an earlier write failed.
func (w *Writer) Printf(format string, args ...any) {
	if w.Err == nil {
		_, w.Err = fmt.Fprintf(w.out, format, args...)
	}
}
