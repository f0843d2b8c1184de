// Package s3 is a bucket on Amazon S3 or a server that speaks its protocol, conditional writes included.
//
// Only reads, lists and deletes are retried, by the SDK and within their deadline. A write is sent once: if it had
// succeeded without an answer, a retry would return a failed precondition.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/logplane/logplane/projection/bucket"
)

// Config says which bucket to use, and with which credentials.
type Config struct {
	// Endpoint is the URL of a server other than Amazon's, for example 'http://127.0.0.1:9000'; empty for Amazon S3.
	Endpoint string
	// Region, if empty, is the environment's region, or 'us-east-1' if the environment has none.
	Region string
	// Bucket is the bucket's name. The bucket must exist: see Ensure.
	Bucket string
	// AccessKey and SecretKey are both empty for the SDK's default chain (environment, files, roles).
	AccessKey, SecretKey string
	// PathStyle puts the bucket's name into the path instead of the host, as most other servers require.
	PathStyle bool
	// CAFile is a file of authorities for the server's certificate; empty for the system's authorities.
	CAFile string
	// RequestTimeout bounds every request, retries included; 30 s by default.
	RequestTimeout time.Duration
}

const defaultTimeout = 30 * time.Second

// Bucket is a bucket.Bucket. Any number of goroutines may use it, and it needs no closing.
//
// The credentials must also allow listing objects ('s3:ListBucket'): otherwise S3 answers 403 for a missing object.
type Bucket struct {
	client  atomic.Pointer[awss3.Client]
	connect func() *awss3.Client
	name    string
	region  string
	timeout time.Duration
}

var _ bucket.Bucket = (*Bucket)(nil)

// Open returns the bucket that c describes. It sends no request.
func Open(ctx context.Context, c Config) (*Bucket, error) {
	if c.Bucket == "" {
		return nil, errors.New("open S3 bucket: it has no name")
	}
	if (c.AccessKey == "") != (c.SecretKey == "") {
		return nil, errors.New("open S3 bucket: access key and secret key must be given together")
	}
	options := loading(c)
	if c.CAFile != "" {
		authorities, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("open S3 bucket: read its authorities: %w", err)
		}
		options = append(options, config.WithCustomCABundle(bytes.NewReader(authorities)))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("open S3 bucket: %w", err)
	}
	loaded.Credentials = keys{loaded.Credentials}
	loaded.Region = cmp.Or(loaded.Region, "us-east-1")
	b := &Bucket{name: c.Bucket, region: loaded.Region, timeout: cmp.Or(c.RequestTimeout, defaultTimeout)}
	b.connect = func() *awss3.Client { // each client has its own connections; all share the keys
		return awss3.NewFromConfig(loaded, func(o *awss3.Options) {
			o.UsePathStyle = c.PathStyle
			if own, ok := loaded.HTTPClient.(*awshttp.BuildableClient); ok {
				o.HTTPClient = own.WithTransportOptions() // a copy
			}
			if c.Endpoint != "" {
				o.BaseEndpoint = aws.String(c.Endpoint)
			}
		})
	}
	b.Reconnect()
	return b, nil
}

// Reconnect does the work of bucket.Reconnect. Unused connections close by themselves.
func (b *Bucket) Reconnect() { b.client.Store(b.connect()) }

func loading(c Config) []func(*config.LoadOptions) error {
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConnsPerHost = 64 // a list reads that many segments at once
		})),
		// By default the SDK sends trailing checksums over https. Servers other than Amazon's reject such checksums.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if c.Region != "" {
		options = append(options, config.WithRegion(c.Region))
	}
	if c.AccessKey != "" {
		keys := aws.Credentials{AccessKeyID: c.AccessKey, SecretAccessKey: c.SecretKey, Source: "logplane"}
		options = append(options, config.WithCredentialsProvider(
			aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return keys, nil })))
	}
	return options
}

// keys are the keys that the SDK finds. If it finds none, the error says where it has looked.
type keys struct{ aws.CredentialsProvider }

// Retrieve implements aws.CredentialsProvider.
func (k keys) Retrieve(ctx context.Context) (aws.Credentials, error) {
	found, err := k.CredentialsProvider.Retrieve(ctx)
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return found, err
	}
	env, _ := config.NewEnvConfig() // its errors are those of Open
	var unset []string
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if os.Getenv(name) == "" {
			unset = append(unset, name)
		}
	}
	return found, fmt.Errorf("there are no keys for S3: not set in the environment: %s; no keys of the profile '%s' in '%s'; none from a role: %w",
		strings.Join(unset, " and "), cmp.Or(env.SharedConfigProfile, config.DefaultSharedConfigProfile),
		cmp.Or(env.SharedCredentialsFile, config.DefaultSharedCredentialsFilename()), err)
}

// Ensure finds the bucket. If it is missing and mayMake is set, Ensure makes it, and says so.
func (b *Bucket) Ensure(ctx context.Context, mayMake bool) (made bool, err error) {
	_, err = send(ctx, b, (*awss3.Client).HeadBucket, &awss3.HeadBucketInput{Bucket: &b.name})
	status := 0
	if answer, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		status = answer.HTTPStatusCode()
	}
	switch {
	case err == nil:
		return false, nil
	case status == http.StatusForbidden: // without a reason, because the answer has no body
		return false, fmt.Errorf("find bucket '%s': the server refuses the keys, or they may not list this bucket: %w", b.name, err)
	case status != http.StatusNotFound:
		return false, fmt.Errorf("find bucket '%s': %w", b.name, err)
	case !mayMake:
		return false, fmt.Errorf("there is no bucket '%s': correct its name, or give --create-bucket to make it", b.name)
	}
	in := &awss3.CreateBucketInput{Bucket: &b.name}
	if b.region != "us-east-1" {
		in.CreateBucketConfiguration = &types.CreateBucketConfiguration{
			LocationConstraint: types.BucketLocationConstraint(b.region),
		}
	}
	_, err = send(ctx, b, (*awss3.Client).CreateBucket, in)
	if err != nil && code(err) != "BucketAlreadyOwnedByYou" { // ours, but another process made it at the same time
		return false, fmt.Errorf("create bucket '%s': %w", b.name, err)
	}
	return err == nil, nil
}

// send sends a request. Its answer must come before the timeout.
func send[In, Out any](
	ctx context.Context, b *Bucket,
	request func(*awss3.Client, context.Context, *In, ...func(*awss3.Options)) (*Out, error),
	in *In, options ...func(*awss3.Options),
) (*Out, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	return request(b.client.Load(), ctx, in, options...)
}

// once turns off retries, for writes.
func once(o *awss3.Options) { o.Retryer = aws.NopRetryer{} }

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string) ([]byte, string, error) {
	body, out, err := b.get(ctx, key, nil)
	if err != nil {
		return nil, "", failure("get", key, err)
	}
	return body, aws.ToString(out.ETag), nil
}

// GetRange implements bucket.Bucket.
func (b *Bucket) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	body, out, err := b.get(ctx, key, aws.String(rangeHeader(offset, length)))
	if code(err) == "InvalidRange" {
		return nil, nil // the object is there and ends before the range
	}
	if err != nil {
		return nil, failure("get range of", key, err)
	}
	if out.ContentRange == nil { // the server sent the whole object
		from, to := bucket.Span(int64(len(body)), offset, length)
		return body[from:to], nil
	}
	return body[:min(int64(len(body)), max(0, length))], nil
}

// rangeHeader covers at least the range: HTTP cannot ask for zero bytes, nor for only the beginning of a suffix.
func rangeHeader(offset, length int64) string {
	if offset < 0 {
		return fmt.Sprintf("bytes=-%d", -max(offset, -math.MaxInt64))
	}
	last := offset + max(1, length) - 1
	if last < offset { // overflow: read to the end
		return fmt.Sprintf("bytes=%d-", offset)
	}
	return fmt.Sprintf("bytes=%d-%d", offset, last)
}

// get sends a read. It reads again if the body breaks off, because the SDK does not retry such a read.
func (b *Bucket) get(ctx context.Context, key string, span *string) (body []byte, out *awss3.GetObjectOutput, err error) {
	if err := bucket.CheckKey(key); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	for range getAttempts {
		out, err = b.client.Load().GetObject(ctx, &awss3.GetObjectInput{Bucket: &b.name, Key: &key, Range: span})
		if err != nil {
			return nil, nil, err
		}
		body, err = readAll(out)
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return body, out, err
}

const getAttempts = 3

// readAll fails if the body is shorter than the length that the server announced.
func readAll(out *awss3.GetObjectOutput) ([]byte, error) {
	defer out.Body.Close()
	var body bytes.Buffer
	body.Grow(int(min(max(0, aws.ToInt64(out.ContentLength)), 64<<20)) + bytes.MinRead)
	if _, err := body.ReadFrom(out.Body); err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	return body.Bytes(), nil
}

// Create implements bucket.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, body []byte) (string, error) {
	return b.put(ctx, "create", &awss3.PutObjectInput{Key: &key, IfNoneMatch: aws.String("*")}, body)
}

// Replace implements bucket.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	if etag == "" || etag == "*" {
		// To S3 these two ETags mean any object. Here they are ETags that no object has.
		if err := bucket.CheckKey(key); err != nil {
			return "", err
		}
		return "", failure("replace", key, bucket.ErrPrecondition)
	}
	return b.put(ctx, "replace", &awss3.PutObjectInput{Key: &key, IfMatch: &etag}, body)
}

// put sends a conditional write, once.
func (b *Bucket) put(ctx context.Context, op string, in *awss3.PutObjectInput, body []byte) (string, error) {
	if err := bucket.CheckKey(*in.Key); err != nil {
		return "", err
	}
	in.Bucket, in.Body, in.ContentLength = &b.name, bytes.NewReader(body), aws.Int64(int64(len(body)))
	in.ContentType = aws.String("application/octet-stream")
	out, err := send(ctx, b, (*awss3.Client).PutObject, in, once)
	if err != nil {
		return "", failure(op, *in.Key, err)
	}
	if aws.ToString(out.ETag) == "" {
		return "", failure(op, *in.Key, errors.New("the server sent no ETag"))
	}
	return *out.ETag, nil
}

// Copy implements bucket.Bucket. Like every write it is sent once. Not every server refuses a taken key.
func (b *Bucket) Copy(ctx context.Context, from, to string) error {
	if err := errors.Join(bucket.CheckKey(from), bucket.CheckKey(to)); err != nil {
		return err
	}
	// A path may contain an unescaped '+', but servers take '+' for a space. So '+' is escaped here.
	source := strings.NewReplacer("%2F", "/", "+", "%20").Replace(url.QueryEscape(b.name + "/" + from))
	in := &awss3.CopyObjectInput{Bucket: &b.name, Key: &to, CopySource: &source, IfNoneMatch: aws.String("*")}
	_, err := send(ctx, b, (*awss3.Client).CopyObject, in, once)
	return failure("copy", from, err)
}

// List implements bucket.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	if err := bucket.CheckPrefix(prefix); err != nil {
		return err
	}
	last := ""
	for in := (&awss3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix}); ; {
		page, err := send(ctx, b, (*awss3.Client).ListObjectsV2, in)
		if err != nil {
			return failure("list", prefix, err)
		}
		for _, o := range page.Contents {
			a := bucket.Attributes{Key: aws.ToString(o.Key), Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified)}
			if a.Key <= last {
				// S3 directory buckets do not list in order.
				return fmt.Errorf("%w: it listed %q after %q, which is not in order", bucket.ErrUnfit, a.Key, last)
			}
			last = a.Key
			if err := yield(a); err != nil {
				return err
			}
		}
		if !aws.ToBool(page.IsTruncated) {
			return nil
		}
		in.ContinuationToken = page.NextContinuationToken
	}
}

// Delete implements bucket.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := bucket.CheckKey(key); err != nil {
		return err
	}
	_, err := send(ctx, b, (*awss3.Client).DeleteObject, &awss3.DeleteObjectInput{Bucket: &b.name, Key: &key})
	err = failure("delete", key, err)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil // some servers answer this way
	}
	return err
}

// failure classifies an error of the SDK.
func failure(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if answer, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		status, code := answer.HTTPStatusCode(), code(err)
		switch {
		case status == http.StatusPreconditionFailed,
			// This write lost a race with another write and did not happen. The caller must read the other's outcome.
			status == http.StatusConflict && code == "ConditionalRequestConflict":
			err = fmt.Errorf("%w (%w)", bucket.ErrPrecondition, err)
		case status == http.StatusNotFound && (code == "NoSuchKey" || code == "NotFound"):
			// A missing bucket is 404 too, and must not look like an empty bucket.
			err = bucket.ErrNotFound
		}
	}
	return fmt.Errorf("%s %s: %w", op, key, err)
}

// code is the S3 error code in err, or empty.
func code(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	return ""
}
