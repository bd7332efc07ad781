package output_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
)

type result struct {
	Count int    `json:"count"`
	Name  string `json:"name"`
}

func (result) Kind() string { return "Result" }

func (r result) Text(out io.Writer, wide bool) error {
	t := output.NewTable("NAME", "+EXTRA")
	t.Row(r.Name, "more")
	return t.Write(out, wide)
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	flags := output.NewFlags()
	cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error {
		return flags.Print(result{Count: 3}, cmd.OutOrStdout())
	}}
	flags.AddTo(cmd)
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestFormats(t *testing.T) {
	for format, want := range map[string]string{
		"":                       "NAME\n-\n",
		"wide":                   "NAME   EXTRA\n-      more\n",
		"yaml":                   "apiVersion: kubectl-gpu/v1alpha1\ncount: 3\nkind: Result\nname: \"\"\n",
		"jsonpath={.count}":      "3",
		"go-template={{.kind}}!": "Result!",
		"json":                   "{\n    \"apiVersion\": \"kubectl-gpu/v1alpha1\",\n    \"count\": 3,\n    \"kind\": \"Result\",\n    \"name\": \"\"\n}\n",
	} {
		out, err := run(t, "-o", format)
		if err != nil || out != want {
			t.Errorf("-o %s: %q, %v; want %q", format, out, err, want)
		}
	}
	if _, err := run(t, "-o", "xml"); err == nil || !strings.Contains(err.Error(), "xml is none of wide, go-template") {
		t.Errorf("-o xml: %v", err)
	}
	for format, want := range map[string]string{
		"jsonpath={.count":     "-o jsonpath={.count: error parsing jsonpath {.count, unclosed action",
		"go-template={{.kind}": "-o go-template={{.kind}: ",
		"jsonpath":             "-o jsonpath: ",
		"jsonpath-file=/no":    "/no",
		"go-template-file=/no": "/no",
		"name":                 "-o name is none of wide",
	} {
		if out, err := run(t, "-o", format); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-o %s: %q, %v; want %q", format, out, err, want)
		}
	}
	if out, err := run(t, "__complete", "-o", ""); err != nil {
		t.Errorf("completion: %q, %v", out, err)
	}
}

type full struct{ writes int }

var errFull = errors.New("full")

func (f *full) Write([]byte) (int, error) { f.writes++; return 0, errFull }

func TestWriterKeepsTheFirstError(t *testing.T) {
	f := &full{}
	w := output.NewWriter(f)
	w.Printf("a")
	w.Printf("b")
	if !errors.Is(w.Err, errFull) || f.writes != 1 {
		t.Errorf("%v after %d writes", w.Err, f.writes)
	}
}
