// Command gen writes the generated reference pages, docs/reference/*.md, from the definitions
// in the code. With -check it writes nothing and fails where a page is not current.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "only tell which pages are not current")
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// page is one generated file.
type page struct {
	file   string
	render func(root string) (string, error)
}

func pages() []page {
	return []page{
		{"attributes.md", func(string) (string, error) { return attributesPage(), nil }},
		{"flags.md", func(string) (string, error) { return flagsPage(), nil }},
		{"metrics.md", func(string) (string, error) { return metricsPage() }},
		{"events.md", func(string) (string, error) { return eventsPage(), nil }},
		{"health.md", func(string) (string, error) { return healthPage() }},
		{"config.md", configPage},
		{"kubectl-gpu.md", func(string) (string, error) { return commandsPage(), nil }},
	}
}

func run(root string, check bool) error {
	var stale []error
	for _, p := range pages() {
		content, err := p.render(root)
		if err != nil {
			return fmt.Errorf("page %s: %w", p.file, err)
		}
		path := filepath.Join(root, "docs", "reference", p.file)
		if check {
			if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, []byte(content)) {
				stale = append(stale, fmt.Errorf("%s is not current: run make docs", path))
			}
			continue
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(stale...)
}
