package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"k8s.io/apimachinery/pkg/types"
)

// A file is one header line and a JSON body:
//
//	gpu-claim-record 1 sha256=<64 hex digits> bytes=<n>\n
//	{...}
//
// The sum is over the body as it lies on disk, never over something marshalled again, so that
// no change of a type can make an old file look damaged. The number after the magic word is
// raised only for a change that an older reader would misunderstand; new members of the body
// need no new number, since readers keep what they do not know.
const (
	magic = "gpu-claim-record"
	// FormatVersion is the newest format that this package reads, and the one it writes.
	FormatVersion = 1

	// maxBody bounds what is read into memory for one claim. A claim of 32 devices with
	// several steps each takes some 30 KiB.
	maxBody = 4 << 20

	maxUIDLength = 64
)

// CheckUID tells whether a claim's UID can be a file name. UIDs come from outside the node;
// the API server makes RFC 4122 text, and nothing but letters, digits and inner dashes passes.
func CheckUID(uid types.UID) error {
	bad := func(why string) error {
		return fmt.Errorf("claim UID %q %s: want 1 to %d letters, digits and inner dashes", uid, why, maxUIDLength)
	}
	if uid == "" {
		return bad("is empty")
	}
	if len(uid) > maxUIDLength {
		return bad("is too long")
	}
	for i := range len(uid) {
		c := uid[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		inner := i > 0 && i < len(uid)-1
		if !alnum && (c != '-' || !inner) {
			return bad("has a character that is not allowed")
		}
	}
	return nil
}

// encode renders a record as the bytes of its file. Equal records give equal bytes.
func encode(r *Record) ([]byte, error) {
	body, err := json.Marshal(r, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode the record of claim %s: %w", r.UID, err)
	}
	sum := sha256.Sum256(body)
	out := fmt.Appendf(nil, "%s %d sha256=%s bytes=%d\n", magic, FormatVersion, hex.EncodeToString(sum[:]), len(body))
	return append(append(out, body...), '\n'), nil
}

// decode is the inverse of encode. Its errors are a *NewerFormatError or say what is wrong
// with the bytes; the caller adds the path.
func decode(data []byte) (*Record, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("the file is empty")
	}
	line, rest, found := bytes.Cut(data, []byte("\n"))
	if !found {
		return nil, fmt.Errorf("the header line is missing or cut off")
	}
	h, err := parseHeader(string(line))
	if err != nil {
		return nil, err
	}
	// One newline ends the file for people who read it; it is not part of the body.
	body, ended := bytes.CutSuffix(rest, []byte("\n"))
	if !ended || len(body) != h.bytes {
		return nil, fmt.Errorf("the body is torn: %d bytes where the header says %d", len(body), h.bytes)
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != h.sum {
		return nil, fmt.Errorf("the checksum does not match: the file was changed or damaged")
	}
	var r Record
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("decode the body: %w", err)
	}
	if err := CheckUID(r.UID); err != nil {
		return nil, err
	}
	return &r, nil
}

type header struct {
	sum   string
	bytes int
}

func parseHeader(line string) (header, error) {
	bad := func(what string) (header, error) {
		return header{}, fmt.Errorf("the header line %.100q %s", line, what)
	}
	fields := strings.Split(line, " ")
	if fields[0] != magic || len(fields) < 2 {
		return bad("is not that of a claim record")
	}
	version, err := strconv.Atoi(fields[1])
	if err != nil || version < 1 {
		return bad("has no format version")
	}
	if version > FormatVersion {
		return header{}, &NewerFormatError{Version: version}
	}
	if len(fields) != 4 {
		return bad("has the wrong number of fields")
	}
	sum, ok := strings.CutPrefix(fields[2], "sha256=")
	if !ok || len(sum) != 2*sha256.Size {
		return bad("has no sha256 sum")
	}
	length, ok := strings.CutPrefix(fields[3], "bytes=")
	n, err := strconv.Atoi(length)
	if !ok || err != nil || n < 0 || n > maxBody {
		return bad(fmt.Sprintf("has no length from 0 to %d", maxBody))
	}
	return header{sum: sum, bytes: n}, nil
}
