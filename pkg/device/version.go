package device

import (
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
	resourceapi "k8s.io/api/resource/v1"
)

// Version turns a version as drivers write it into the semantic version that the API wants:
// leading zeros are dropped ("580.95.05" is 580.95.5), missing numbers are 0 ("13.0" is
// 13.0.0), and whatever follows the third number becomes build metadata ("580.105.08-custom"
// is 580.105.8+custom). Metadata rather than a pre-release: a vendor's build of 580.105.8 must
// satisfy a selector that asks for at least that version. A leading "v" is allowed.
func Version(text string) (string, error) {
	numbers, rest := leadingNumbers(strings.TrimPrefix(strings.TrimSpace(text), "v"))
	if len(numbers) == 0 {
		return "", fmt.Errorf("version %q does not start with a number", text)
	}
	for len(numbers) < 3 {
		numbers = append(numbers, "0")
	}
	core := strings.Join(numbers, ".")
	if _, err := semver.Parse(core); err != nil || len(core) > resourceapi.DeviceAttributeMaxValueLength {
		return "", fmt.Errorf("version %q has a number that is too large", text)
	}
	if build := metadata(rest); build != "" && len(core)+1+len(build) <= resourceapi.DeviceAttributeMaxValueLength {
		return core + "+" + build, nil
	}
	return core, nil
}

// leadingNumbers cuts off up to three numbers that dots join, without leading zeros.
func leadingNumbers(text string) (numbers []string, rest string) {
	for {
		var digits string
		digits, text = cutDigits(text)
		if digits == "" {
			return numbers, text
		}
		if digits = strings.TrimLeft(digits, "0"); digits == "" {
			digits = "0"
		}
		numbers = append(numbers, digits)
		if len(numbers) == 3 || len(text) < 2 || text[0] != '.' || !isDigit(text[1]) {
			return numbers, text
		}
		text = text[1:]
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func cutDigits(text string) (digits, rest string) {
	n := 0
	for n < len(text) && isDigit(text[n]) {
		n++
	}
	return text[:n], text[n:]
}

// metadata makes build metadata of what follows the numbers: identifiers of letters, digits
// and dashes, joined by dots.
func metadata(text string) string {
	fields := strings.FieldsFunc(text, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	var out []string
	for _, f := range fields {
		if f = strings.Trim(f, "-"); f != "" {
			out = append(out, f)
		}
	}
	return strings.Join(out, ".")
}
