// Package commands finds the commands in the documentation and says how each block of them is tested.
// It is for the tests that do so: of the documents, of the chart and on a cluster. It runs nothing
// by itself and knows none of the commands.
package commands

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Where says which tests try a block.
type Where string

// The tests: those of the documents run commands that need no cluster, those of the chart render it
// with what the commands say, the end-to-end tests run commands on a cluster. Never is for what no
// test can do, with the reason.
const (
	Here    Where = "here"
	Chart   Where = "chart"
	Cluster Where = "cluster"
	Never   Where = "never"
)

// Rule is how one block is tested.
type Rule struct {
	// Page is the document's path from the repository's root, Begins the beginning of the block's first line.
	Page   string `json:"page"`
	Begins string `json:"begins"`
	Where  Where  `json:"where"`
	// Why there is no test; for Never.
	Why string `json:"why,omitempty"`
	// Says is what a block that runs prints, among other things.
	Says string `json:"says,omitempty"`
}

// Block is one block of commands in a document.
type Block struct {
	Page string
	Text string
	Rule Rule
}

//go:embed commands.yaml
var table []byte

// languages are those that a block of a document may have. Only "sh" is commands; what a terminal
// showed is "console" with its prompt, or "text".
func languages() []string {
	return []string{"sh", "console", "text", "yaml", "json", "cel", "toml", "promql"}
}

var fence = regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)^ *```$")

// Read finds the blocks of commands in the documents of a repository, each with its rule. The error
// names blocks without a rule, rules without a block, and blocks whose language is not said.
func Read(repository string) ([]Block, error) {
	var rules []Rule
	if err := yaml.UnmarshalStrict(table, &rules); err != nil {
		return nil, fmt.Errorf("table of commands: %w", err)
	}
	pages, err := Pages(repository)
	if err != nil {
		return nil, err
	}
	var all []Block
	var errs []error
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(repository, page))
		if err != nil {
			return nil, err
		}
		blocks, err := find(page, string(text))
		all, errs = append(all, blocks...), append(errs, err)
	}
	return all, errors.Join(append(errs, match(all, rules))...)
}

// Pages are the documents that people follow: not the reference, which is generated, nor decisions.
func Pages(repository string) ([]string, error) {
	pages := []string{"README.md", "demo/specs/README.md", "test/e2e/README.md"}
	files, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	for _, file := range files {
		pages = append(pages, "docs/"+filepath.Base(file))
	}
	return pages, err
}

func find(page, text string) ([]Block, error) {
	var blocks []Block
	var errs []error
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		indent, language, body := m[1], m[2], m[3]
		if !slices.Contains(languages(), language) {
			errs = append(errs, fmt.Errorf("%s: the block that begins with %q has the language %q, must be one of %q", page, first(body), language, languages()))
		}
		if language == "sh" {
			body = strings.TrimPrefix(strings.ReplaceAll("\n"+body, "\n"+indent, "\n"), "\n")
			blocks = append(blocks, Block{Page: page, Text: body})
		}
	}
	return blocks, errors.Join(errs...)
}

func first(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// match gives each block its rule.
func match(blocks []Block, rules []Rule) error {
	var errs []error
	used := make([]int, len(rules))
	for i := range blocks {
		b := &blocks[i]
		for r, rule := range rules {
			if rule.Page == b.Page && strings.HasPrefix(b.Text, rule.Begins) {
				b.Rule = rule
				used[r]++
			}
		}
		if b.Rule.Where == "" {
			errs = append(errs, fmt.Errorf("%s: docs/commands/commands.yaml does not say how the block that begins with %q is tested", b.Page, first(b.Text)))
		}
	}
	for r, rule := range rules {
		switch known := slices.Contains([]Where{Here, Chart, Cluster, Never}, rule.Where); {
		case used[r] != 1:
			errs = append(errs, fmt.Errorf("docs/commands/commands.yaml: %d blocks of %s begin with %q, must be one", used[r], rule.Page, rule.Begins))
		case !known:
			errs = append(errs, fmt.Errorf("docs/commands/commands.yaml: where is %q, must be here, chart, cluster or never", rule.Where))
		case (rule.Where == Never) != (rule.Why != ""):
			errs = append(errs, fmt.Errorf("docs/commands/commands.yaml: %s, %q: a reason belongs to what is never tested, and to nothing else", rule.Page, rule.Begins))
		}
	}
	return errors.Join(errs...)
}

// Lines are the block's commands, those that a backslash joins as one, without comments of whole lines.
func (b Block) Lines() []string {
	var lines []string
	for line := range strings.SplitSeq(strings.ReplaceAll(b.Text, "\\\n", " "), "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Fill puts values in the place of the words that stand for them in documents, such as NODE.
func (b Block) Fill(values map[string]string) string {
	text := b.Text
	for name, value := range values {
		text = regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).ReplaceAllLiteralString(text, value)
	}
	return text
}

// Run runs a block's text in a shell that ends at the first failure, and returns what it printed.
// Functions is shell text that comes before it.
func Run(ctx context.Context, dir string, environment []string, functions, text string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", functions+"\n"+text)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
