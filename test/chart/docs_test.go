package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-dra/driver/docs/commands"
)

// instruction is what a line of documentation wants of the chart.
type instruction struct {
	action, release, namespace string
	set                        []string
}

// instructionOf reads the arguments of helm or of chartctl. A flag that is not known here fails the test.
func instructionOf(t *testing.T, args []string) instruction {
	t.Helper()
	a := instruction{}
	var words []string
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case slices.Contains([]string{"--namespace", "--set"}, arg):
			i++
			if arg == "--set" {
				a.set = append(a.set, args[i])
			} else {
				a.namespace = args[i]
			}
		case slices.Contains([]string{"--create-namespace", "--reset-then-reuse-values"}, arg):
		case strings.HasPrefix(arg, "-"):
			t.Errorf("flag %s is not known", arg)
		default:
			words = append(words, arg)
		}
	}
	if len(words) != 3 || !slices.Contains([]string{"install", "upgrade"}, words[0]) || !strings.HasSuffix(words[2], "deployments/helm/gpu-dra-driver") {
		t.Fatalf("%q is no installation or upgrade of the chart", words)
	}
	a.action, a.release = words[0], words[1]
	return a
}

// The commands of the documentation that install or change the release render: the chart has their
// values and takes them together.
func TestCommandsOfDocs(t *testing.T) {
	const repository = "../.."
	blocks, err := commands.Read(repository)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, b := range blocks {
		if b.Rule.Where != commands.Chart {
			continue
		}
		t.Run(b.Page+": "+b.Lines()[0], func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "arguments")
			// The shell takes the words apart; go stands for go run -C test/chart ./cmd/chartctl.
			shell := `helm() { printf '%s\n' "$@" >> ` + file + `; echo >> ` + file + `; }
go() { shift 4; helm "$@"; }`
			if out, err := commands.Run(t.Context(), repository, nil, shell, b.Text); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for call := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				seen++
				a := instructionOf(t, strings.Split(call, "\n"))
				if a.namespace == "" {
					a.namespace = "gpu-dra-driver"
				}
				release := Release{Name: a.release, Namespace: strings.ToLower(a.namespace), Chart: chartDir, Values: Values{Set: a.set}}
				if _, err := Render(t.Context(), release, reference); err != nil {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
	if seen < 5 {
		t.Errorf("only %d commands", seen)
	}
}
