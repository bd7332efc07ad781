package device

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/blang/semver/v4"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// CheckName tells whether the API takes the name of an attribute or a capacity: a C identifier
// of at most 32 bytes, after an optional DNS domain and a slash.
func CheckName(name resourceapi.QualifiedName) error {
	id := string(name)
	if domain, rest, qualified := strings.Cut(id, "/"); qualified {
		id = rest
		if len(domain) > resourceapi.DeviceMaxDomainLength || len(validation.IsDNS1123Subdomain(domain)) > 0 {
			return fmt.Errorf("domain %q is not a DNS name of at most %d bytes", domain, resourceapi.DeviceMaxDomainLength)
		}
	}
	if len(id) > resourceapi.DeviceMaxIDLength || len(validation.IsCIdentifier(id)) > 0 {
		return fmt.Errorf("name %q is not a C identifier of at most %d bytes", id, resourceapi.DeviceMaxIDLength)
	}
	return nil
}

// CheckAttribute tells whether the API takes an attribute: exactly one value, strings of at
// most 64 bytes of text, versions as semver.org defines them, no empty list.
func CheckAttribute(name resourceapi.QualifiedName, value resourceapi.DeviceAttribute) error {
	if err := CheckName(name); err != nil {
		return err
	}
	values := 0
	for _, set := range []bool{
		value.IntValue != nil, value.BoolValue != nil, value.StringValue != nil, value.VersionValue != nil,
		len(value.IntValues) > 0, len(value.BoolValues) > 0, len(value.StringValues) > 0, len(value.VersionValues) > 0,
	} {
		if set {
			values++
		}
	}
	if values != 1 {
		return fmt.Errorf("it has %d values, exactly one is allowed", values)
	}
	texts, versions := value.StringValues, value.VersionValues
	if value.StringValue != nil {
		texts = []string{*value.StringValue}
	}
	if value.VersionValue != nil {
		versions = []string{*value.VersionValue}
	}
	var errs []error
	for _, text := range texts {
		errs = append(errs, checkText(text))
	}
	for _, version := range versions {
		errs = append(errs, checkVersion(version))
	}
	return errors.Join(errs...)
}

func checkText(text string) error {
	switch {
	case len(text) > resourceapi.DeviceAttributeMaxValueLength:
		return fmt.Errorf("text of %d bytes, at most %d are allowed", len(text), resourceapi.DeviceAttributeMaxValueLength)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("text %q is not printable UTF-8", text)
	}
	return nil
}

func checkVersion(text string) error {
	if _, err := semver.Parse(text); err != nil {
		return fmt.Errorf("version %q is not a semantic version: %w", text, err)
	}
	return checkText(text)
}

// CountValues counts an attribute against the API's limit of values per device: list items
// count one each.
func CountValues(value resourceapi.DeviceAttribute) int {
	return max(1, len(value.IntValues)+len(value.BoolValues)+len(value.StringValues)+len(value.VersionValues))
}
