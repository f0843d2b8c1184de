package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go"
	"github.com/spf13/pflag"

	"github.com/logplane/logplane/internal/calls"
	"github.com/logplane/logplane/internal/trust"
)

const (
	// filesTime bounds the reading of the secret. AWS Lambda gives a process 10 s to start.
	filesTime = 5 * time.Second
	// mostSecret bounds the answer, in bytes. AWS bounds a secret to 64 KiB, of which the answer escapes some bytes.
	mostSecret = 512 << 10
)

func registerFiles(flags *pflag.FlagSet) {
	flags.String("files-secret", "", "ARN of a secret of AWS Secrets Manager, whose files are written at the start to the folder 'logplane' of temporary files, where other flags name them (docs/run/functions.md#secrets)")
}

// FetchFiles writes the files of --files-secret, before a command reads the files that other flags name.
func FetchFiles(ctx context.Context, flags *pflag.FlagSet) error {
	flag := flags.Lookup("files-secret")
	if flag == nil || flag.Value.String() == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, filesTime)
	defer cancel()
	files, err := secretFiles(ctx, flag.Value.String())
	if err == nil {
		err = writeFiles(filepath.Join(os.TempDir(), "logplane"), files)
	}
	if err != nil {
		return fmt.Errorf("--files-secret is '%s': %w", flag.Value, err)
	}
	return nil
}

// secretFiles returns the content of each file in a secret.
func secretFiles(ctx context.Context, name string) (map[string]string, error) {
	at, err := arn.Parse(name)
	if err != nil || at.Service != "secretsmanager" {
		return nil, errors.New("it must be the ARN of a secret, 'arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME'")
	}
	loaded, err := config.LoadDefaultConfig(ctx, config.WithRegion(at.Region))
	if err != nil {
		return nil, fmt.Errorf("find the keys for AWS: %w", err)
	}
	loaded.HTTPClient = &http.Client{Transport: calls.Whole(calls.NewTransport(nil, nil), mostSecret)}
	secret, err := secretsmanager.NewFromConfig(loaded).GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &name})
	if err != nil {
		return nil, fmt.Errorf("read it%s: %w", adviceOnSecret(ctx, err), err)
	}
	var files map[string]string
	if json.Unmarshal([]byte(aws.ToString(secret.SecretString)), &files) != nil || len(files) == 0 { // its error would quote the secret
		return nil, errors.New("its value must be a JSON object of file names and contents: write it with infra/aws/files.sh")
	}
	for file := range files {
		if file != filepath.Base(file) || strings.HasPrefix(file, ".") {
			return nil, fmt.Errorf("it has a file '%s': a name must have no '/', and must not begin with '.'", file)
		}
	}
	return files, nil
}

// adviceOnSecret says what to do about a secret that cannot be read.
func adviceOnSecret(ctx context.Context, err error) string {
	var answer smithy.APIError
	switch {
	case ctx.Err() != nil:
		return " (AWS Secrets Manager gave no answer in time: a network without a way to the internet needs an endpoint for 'secretsmanager')"
	case !errors.As(err, &answer):
		return ""
	case answer.ErrorCode() == "AccessDeniedException", answer.ErrorCode() == "DecryptionFailure":
		return " (allow this process's role 'secretsmanager:GetSecretValue' on it, and 'kms:Decrypt' on its key if it has one of its own)"
	case answer.ErrorCode() == "ResourceNotFoundException":
		return " (make it with infra/aws/files.sh, or correct its region and name)"
	}
	return ""
}

// writeFiles writes files that only this user may read. Other processes of this user may read the folder meanwhile.
func writeFiles(folder string, files map[string]string) error {
	if err := trust.Folder(folder); err != nil {
		return err
	}
	for name, content := range files {
		if err := trust.Replace(filepath.Join(folder, name), []byte(content)); err != nil {
			return err
		}
	}
	return nil
}
