package native

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Symbols returns the names of all functions that an nvml.h declares, sorted.
func Symbols(header []byte) []string {
	declaration := regexp.MustCompile(`DECLDIR\s+(?:char\s*\*\s*)?(nvml[A-Za-z0-9_]+)\s*\(`)
	found := map[string]bool{}
	for _, match := range declaration.FindAllSubmatch(header, -1) {
		found[string(match[1])] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// Implemented returns the names that the C sources define or alias.
func Implemented(sources map[string][]byte) map[string]bool {
	definition := regexp.MustCompile(`(?m)^(?:SIM_EXPORT [a-zA-Z_ \*]*?|SIM_ALIAS\()(nvml\w+)[(,]`)
	found := map[string]bool{}
	for name, source := range sources {
		if !strings.HasPrefix(name, "lib/") {
			continue
		}
		for _, match := range definition.FindAllSubmatch(source, -1) {
			found[string(match[1])] = true
		}
	}
	return found
}

// Stubs returns C source that defines every function of the header which the sources do
// not, answering NOT_SUPPORTED. The stubs take no arguments: with the C calling
// convention of Linux a callee may ignore what it was given.
func Stubs(header []byte, sources map[string][]byte) ([]byte, error) {
	implemented := Implemented(sources)
	symbols := Symbols(header)
	if len(symbols) == 0 {
		return nil, errors.New("nvml.h declares no function: wrong file?")
	}
	var b bytes.Buffer
	b.WriteString("/* Generated: what nvml.h declares and the simulator does not implement. */\n")
	b.WriteString("extern int sim_stub(const char *function);\n")
	b.WriteString("#define STUB(name) __attribute__((visibility(\"default\"))) int name(void); int name(void) { return sim_stub(#name); }\n")
	for _, name := range symbols {
		if !implemented[name] {
			fmt.Fprintf(&b, "STUB(%s)\n", name)
		}
	}
	return b.Bytes(), nil
}
