package v1beta1

import (
	gojson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/json"
)

// UnknownKindError is returned for an object of another group, version or kind.
type UnknownKindError struct {
	APIVersion string
	Kind       string
}

// Error implements error.
func (e *UnknownKindError) Error() string {
	return fmt.Sprintf("apiVersion %q with kind %q is not known: allowed are kinds %q and %q of apiVersion %q",
		cut(e.APIVersion), cut(e.Kind), KindGpuConfig, KindMigDeviceConfig, APIVersion)
}

// Decode reads what a user wrote. A field that does not exist, one that is there twice and a
// value of the wrong type are errors that name the field. Nothing is defaulted or validated.
func Decode(raw []byte) (Config, error) {
	config, err := empty(raw)
	if err != nil {
		return nil, err
	}
	mistakes, err := json.UnmarshalStrict(raw, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config.ConfigKind(), explain(err))
	}
	if len(mistakes) > 0 {
		return nil, fmt.Errorf("%s: %w", config.ConfigKind(), fieldMistakes(mistakes))
	}
	return config, nil
}

// DecodeStored reads what an earlier or later version of the driver has stored: fields that
// this version does not know are passed over, so that they never stand in the way of undoing.
func DecodeStored(raw []byte) (Config, error) {
	config, err := empty(raw)
	if err != nil {
		return nil, err
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, config); err != nil {
		return nil, fmt.Errorf("%s: %w", config.ConfigKind(), explain(err))
	}
	return config, nil
}

// Load is what a user's configuration means: decoded strictly, defaulted and valid.
func Load(raw []byte) (Config, error) {
	config, err := Decode(raw)
	if err != nil {
		return nil, err
	}
	config = config.Defaulted()
	if errs := config.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", config.ConfigKind(), mistakesError(errs.ToAggregate().Errors()))
	}
	return config, nil
}

// empty makes the value for the kind that raw says it is.
func empty(raw []byte) (Config, error) {
	var header TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &header); err != nil {
		if isSyntax, offset := json.SyntaxErrorOffset(err); isSyntax {
			return nil, fmt.Errorf("not valid JSON, at byte %d (want an object with apiVersion and kind): %w", offset, err)
		}
		return nil, fmt.Errorf("not an object with apiVersion and kind: %w", explain(err))
	}
	for _, config := range []Config{&GpuConfig{}, &MigDeviceConfig{}} {
		if header.APIVersion == APIVersion && header.Kind == config.ConfigKind() {
			return config, nil
		}
	}
	return nil, &UnknownKindError{APIVersion: header.APIVersion, Kind: header.Kind}
}

// fieldMistakes shortens the paths of fields that do not exist or are there twice.
func fieldMistakes(mistakes []error) error {
	for _, mistake := range mistakes {
		var at json.FieldError
		if errors.As(mistake, &at) {
			at.SetFieldPath(cut(at.FieldPath()))
		}
	}
	return mistakesError(mistakes)
}

// wrongTypeError puts a value of the wrong JSON type into the words of the API.
type wrongTypeError struct{ cause *gojson.UnmarshalTypeError }

func (e *wrongTypeError) Error() string {
	article := "a"
	if strings.IndexByte("ao", e.cause.Value[0]) >= 0 { // an array, an object
		article = "an"
	}
	// The value of a number has its digits, however many there are.
	text := fmt.Sprintf("is %s %s, must be %s", article, cut(e.cause.Value), jsonType(e.cause.Type.Kind()))
	if e.cause.Field == "" {
		return text
	}
	return cut(e.cause.Field) + ": " + text
}

func (e *wrongTypeError) Unwrap() error { return e.cause }

func explain(err error) error {
	var mismatch *gojson.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return &wrongTypeError{cause: mismatch}
	}
	return err
}

func jsonType(kind reflect.Kind) string {
	switch kind {
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	default:
		return "an object"
	}
}
