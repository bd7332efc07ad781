// Package command is the command line of `kubectl gpu`: its commands, flags and help. It wires the
// packages beside it and decides nothing about GPUs itself.
package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
)

// Streams are what the commands read and write.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// New makes the command with all its sub-commands.
func New(version string, streams Streams) *cobra.Command {
	kube := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:   "kubectl-gpu",
		Short: "Shows, explains and plans the GPUs of a cluster",
		Long: "kubectl gpu shows what GPUs a cluster has and who uses them, says why a pod waits for one, and\n" +
			"helps to write claims. It reads a cluster, saved files (--from) or a recorded machine (--preset),\n" +
			"and changes nothing.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu"},
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	kube.AddFlags(root.PersistentFlags())
	hideRare(root)
	root.AddCommand(
		getCommand(kube), treeCommand(kube), describeCommand(kube), explainCommand(kube), planCommand(kube),
		convertCommand(), adviseCommand(), auditCommand(), doctorCommand(kube), gatherCommand(kube, version), sliceTemplateCommand(),
	)
	return root
}

// hideRare keeps the help to the flags that people use; the others work as in kubectl.
func hideRare(root *cobra.Command) {
	for _, name := range []string{
		"as", "as-group", "as-uid", "as-user-extra", "cache-dir", "certificate-authority", "client-certificate", "client-key", "cluster",
		"disable-compression", "insecure-skip-tls-verify", "server", "tls-server-name", "token", "user",
	} {
		if flag := root.PersistentFlags().Lookup(name); flag != nil {
			flag.Hidden = true
		}
	}
}

// printed makes a command whose result is printed in the chosen format.
func printed(cmd *cobra.Command, run func(cmd *cobra.Command, args []string) (output.Result, error)) *cobra.Command {
	flags := output.NewFlags()
	flags.AddTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		result, err := run(cmd, args)
		if err != nil {
			return err
		}
		return flags.Print(result, cmd.OutOrStdout())
	}
	return cmd
}

// exactly wants so many arguments, and says how the command is used where there are others.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s has %d arguments; use it as: kubectl gpu %s", cmd.Name(), len(args), cmd.Use)
		}
		return nil
	}
}

// examples indents the examples of a help text.
func examples(lines ...string) string { return "  " + strings.Join(lines, "\n  ") }
