package check

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"
)

// inner returns the blocks of a type in a body, with those that are dynamic.
func inner(body *hclsyntax.Body, kind string) (all []*hclsyntax.Block) {
	for _, block := range body.Blocks {
		if block.Type == kind || block.Type == "dynamic" && block.Labels[0] == kind {
			all = append(all, block)
		}
	}
	return all
}

// number returns the value of an attribute that is a number.
func number(t *testing.T, body *hclsyntax.Body, attribute string) int64 {
	t.Helper()
	require.NotNil(t, body.Attributes[attribute], attribute)
	value, diagnostics := body.Attributes[attribute].Expr.Value(nil)
	require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
	n, _ := value.AsBigFloat().Int64()
	return n
}

// TestErrorsAreNotCached: CloudFront repeats no error. The codes are those that it would repeat.
func TestErrorsAreNotCached(t *testing.T) {
	responses := inner(load(t).Blocks["aws_cloudfront_distribution.front"].Body, "custom_error_response")
	require.Len(t, responses, 1)
	codes, diagnostics := responses[0].Body.Attributes["for_each"].Expr.Value(nil)
	require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
	var all []int64
	for _, code := range codes.AsValueSlice() {
		n, _ := code.AsBigFloat().Int64()
		all = append(all, n)
	}
	assert.ElementsMatch(t, []int64{400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504}, all)
	content := responses[0].Body.Blocks[0].Body
	assert.Equal(t, "custom_error_response.value", Source(content.Attributes["error_code"].Expr))
	assert.Zero(t, number(t, content, "error_caching_min_ttl"))
	assert.Nil(t, content.Attributes["response_code"], "clients get the answer of Logplane")
}

// TestSilentWatches: whatever is on the way of a watch waits for two bookmarks before it ends a silent watch.
func TestSilentWatches(t *testing.T) {
	source, err := os.ReadFile("../../internal/kubestore/watch.go")
	require.NoError(t, err)
	require.Regexp(t, regexp.MustCompile(`bookmarkInterval +=  ?time\.Minute\n`), string(source))
	const twice = 2 * 60
	c := load(t)
	for _, origin := range inner(c.Blocks["aws_cloudfront_distribution.front"].Body, "origin") {
		for _, kind := range origin.Body.Blocks {
			seconds := number(t, kind.Body, "origin_read_timeout")
			assert.LessOrEqual(t, seconds, int64(120), "AWS permits no more")
			if text(origin.Body.Attributes["origin_id"].Expr) == "watcher" {
				assert.GreaterOrEqual(t, seconds, int64(twice))
			}
		}
	}
	assert.GreaterOrEqual(t, number(t, c.Blocks["aws_lb.watcher"].Body, "idle_timeout"), int64(twice))
	page, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	for _, seconds := range []int64{120, number(t, c.Blocks["aws_lb.watcher"].Body, "idle_timeout")} {
		assert.Contains(t, string(page), "| "+strconv.FormatInt(seconds, 10)+" s |")
	}
}

// TestEndpoints: the endpoints of AWS services are in each zone that has a server of the log. A NAT gateway replaces
// them.
func TestEndpoints(t *testing.T) {
	c := load(t)
	subnets := map[string]cty.Value{}
	for _, zone := range list(variables["zones"]) {
		subnets[zone] = cty.ObjectVal(map[string]cty.Value{"id": cty.StringVal(zone)})
	}
	for servers, zones := range map[int64][]string{3: list(variables["zones"]), 1: list(variables["zones"])[:1]} {
		for _, internet := range []bool{false, true} {
			chosen := maps.Clone(variables)
			chosen["log_servers"], chosen["internet"] = cty.NumberIntVal(servers), cty.BoolVal(internet)
			ctx, err := c.Values(chosen, map[string]cty.Value{"aws_subnet.private": cty.ObjectVal(subnets)})
			require.NoError(t, err)
			in, diagnostics := c.Blocks["aws_vpc_endpoint.service"].Body.Attributes["subnet_ids"].Expr.Value(ctx)
			require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
			assert.ElementsMatch(t, zones, list(in))
			several := func(address string) int {
				value, diagnostics := c.Blocks[address].Body.Attributes["for_each"].Expr.Value(ctx)
				require.False(t, diagnostics.HasErrors(), "%s", diagnostics)
				return value.LengthInt()
			}
			assert.Equal(t, internet, several("aws_vpc_endpoint.service") == 0)
			assert.Equal(t, internet, several("aws_nat_gateway.internet") == 1)
		}
	}
	granted := func(address string) string { return Source(c.Blocks[address].Body.Attributes["for_each"].Expr) }
	for _, service := range []string{"secretsmanager", "logs", "sqs"} { // what policies of roles name besides s3 and kms
		assert.Contains(t, granted("aws_vpc_endpoint.service"), `"`+service+`"`)
	}
	var asked []string
	for address, block := range c.Blocks {
		for _, statement := range inner(block.Body, "statement") {
			actions := statement.Body.Attributes["actions"]
			if address == "data.aws_iam_policy_document.schedule" || address == "data.aws_iam_policy_document.doorbell" || actions == nil {
				continue // AWS's own schedules and pollers have these
			}
			for _, found := range regexp.MustCompile(`"(\w+):`).FindAllStringSubmatch(Source(actions.Expr), -1) {
				asked = append(asked, found[1])
			}
		}
	}
	slices.Sort(asked)
	assert.Equal(t, []string{"kms", "logs", "s3", "secretsmanager", "sqs", "sts"}, slices.Compact(asked), "KMS is asked by S3, STS by AWS, and each other service has an endpoint")
}
