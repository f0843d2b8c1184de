package printable

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// ugly has a terminal's escapes of 7 and of 8 bits, a line break, text that runs backwards, invisible characters,
// JavaScript's line ends, an invisible character beyond 16 bits, and half a character.
const ugly = "a\x1b[2J\u009b31m\r\nb\tc\x7f\u202egnp.exe\u2066\u200b\u2028\ufeff\U000e0001\xc3"

func TestPrintable(t *testing.T) {
	require.Equal(t, `a\u001b[2J\u009b31m\u000d\u000ab\u0009c\u007f\u202egnp.exe\u2066\u200b\u2028\ufeff\U000e0001`+"\ufffd", Text(ugly))
	require.Equal(t, "a\\u001b\n\tb", Lines("a\x1b\n\tb"))
	require.Equal(t, `naïve 名前 "quoted" \back 🙂`, Text(`naïve 名前 "quoted" \back 🙂`))
	require.Equal(t, `one; two\u001b`, Error(errors.Join(errors.New("one"), errors.New("two\x1b"))))
}

// TestPrintableDocuments: a document has the same meaning with and without escapes.
func TestPrintableDocuments(t *testing.T) {
	for _, text := range []string{"plain", "lines\n\twith tabs\nand more", strings.ToValidUTF8(ugly, "\ufffd")} {
		object := &corev1.ConfigMap{Data: map[string]string{"text": text, "more": "<&>"}}
		printed, err := YAML(object)
		require.NoError(t, err)
		var read corev1.ConfigMap
		require.NoError(t, yaml.UnmarshalStrict([]byte(printed), &read))
		require.Equal(t, object.Data, read.Data)
		require.False(t, strings.ContainsFunc(printed, hiddenInDocument))

		document, err := json.Marshal(object)
		require.NoError(t, err)
		read = corev1.ConfigMap{}
		require.NoError(t, json.Unmarshal([]byte(JSON(document)), &read))
		require.Equal(t, object.Data, read.Data)
		require.False(t, strings.ContainsFunc(JSON(document), hidden))
	}
}
