package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/command"
)

// commandsPage documents the command line from its own help.
func commandsPage() string {
	root := command.New("v0.0.0", command.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	var b strings.Builder
	b.WriteString(head("Commands of kubectl gpu", "What each command does is in [kubectl gpu](../kubectl-gpu.md). Flags of all commands:"))
	flagTable(&b, root.PersistentFlags())
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n```\nkubectl gpu %s [flags]\n```\n\n%s\n\n", c.Name(), c.Short, c.Use, c.Long)
		if c.Example != "" {
			fmt.Fprintf(&b, "```\n%s\n```\n\n", unindent(c.Example))
		}
		flagTable(&b, c.LocalNonPersistentFlags())
	}
	return b.String()
}

func flagTable(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | default | meaning |\n| --- | --- | --- |\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name, value := "--"+f.Name, "`"+f.DefValue+"`"
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		// What a machine makes of a default, such as the home of a user, is no fact of the command.
		if f.DefValue == "" || f.DefValue == "[]" || f.Name == "cache-dir" {
			value = ""
		}
		if _, required := f.Annotations[cobra.BashCompOneRequiredFlag]; required {
			value = "required"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, value, strings.ReplaceAll(f.Usage, "|", "\\|"))
	})
}

func unindent(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "  "), "\n  ", "\n")
}
