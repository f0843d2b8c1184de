# CloudFront: one address for both. It chooses an origin by path, and a watch is a query parameter, so a function of
# CloudFront's own chooses (front.js).
resource "aws_cloudfront_function" "front" {
  name    = "${var.name}-front"
  runtime = "cloudfront-js-2.0"
  comment = "Sends watches to the watchers"
  publish = true
  code    = file("${path.module}/front.js")
}

resource "aws_cloudfront_vpc_origin" "watcher" {
  vpc_origin_endpoint_config {
    name                   = "${var.name}-watcher"
    arn                    = aws_lb.watcher.arn
    http_port              = 80
    https_port             = 443
    origin_protocol_policy = "https-only"
    origin_ssl_protocols {
      items    = ["TLSv1.2"]
      quantity = 1
    }
  }
}

data "aws_cloudfront_cache_policy" "none" {
  name = "Managed-CachingDisabled"
}

# Everything that the client sent, also Authorization. The function URL wants its own name as the host.
data "aws_cloudfront_origin_request_policy" "all" {
  name = "Managed-AllViewerExceptHostHeader"
}

resource "aws_cloudfront_distribution" "front" {
  comment         = "Logplane cell ${var.name}"
  enabled         = true
  is_ipv6_enabled = true
  http_version    = "http2"
  aliases         = [var.domain]
  web_acl_id      = var.web_acl == "managed" ? aws_wafv2_web_acl.front["managed"].arn : var.web_acl

  origin {
    origin_id   = "api"
    domain_name = trimsuffix(trimprefix(aws_lambda_function_url.api.function_url, "https://"), "/")
    custom_origin_config {
      http_port                = 80
      https_port               = 443
      origin_protocol_policy   = "https-only"
      origin_ssl_protocols     = ["TLSv1.2"]
      origin_read_timeout      = 60
      origin_keepalive_timeout = 60
    }
  }

  # A watch that sends nothing for this time is cut off, and its client opens another where it was. AWS permits 120 s, and
  # a watch that asks for bookmarks, as controllers do, sends one a minute.
  origin {
    origin_id   = "watcher"
    domain_name = local.watcher_domain
    vpc_origin_config {
      vpc_origin_id            = aws_cloudfront_vpc_origin.watcher.id
      origin_read_timeout      = 120
      origin_keepalive_timeout = 60
    }
  }

  default_cache_behavior {
    target_origin_id         = "api"
    allowed_methods          = ["GET", "HEAD", "OPTIONS", "PUT", "POST", "PATCH", "DELETE"]
    cached_methods           = ["GET", "HEAD"]
    viewer_protocol_policy   = "https-only"
    cache_policy_id          = data.aws_cloudfront_cache_policy.none.id
    origin_request_policy_id = data.aws_cloudfront_origin_request_policy.all.id
    function_association {
      event_type   = "viewer-request"
      function_arn = aws_cloudfront_function.front.arn
    }
  }

  # By default CloudFront repeats an error for ten seconds: a 503 with Retry-After would outlast its cause.
  dynamic "custom_error_response" {
    for_each = [400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504]
    content {
      error_code            = custom_error_response.value
      error_caching_min_ttl = 0
    }
  }

  restrictions {
    geo_restriction {
      restriction_type = "none"
    }
  }

  viewer_certificate {
    acm_certificate_arn      = aws_acm_certificate_validation.front.certificate_arn
    ssl_support_method       = "sni-only"
    minimum_protocol_version = "TLSv1.2_2021"
  }
}

# A rule that looks at bodies, such as one of AWS's common rules, would refuse objects.
resource "aws_wafv2_web_acl" "front" {
  for_each = toset(var.web_acl == "managed" ? ["managed"] : [])
  provider = aws.front
  name     = "${var.name}-${each.key}"
  scope    = "CLOUDFRONT"
  default_action {
    allow {}
  }
  rule {
    name     = "reputation"
    priority = 0
    override_action {
      none {}
    }
    statement {
      managed_rule_group_statement {
        vendor_name = "AWS"
        name        = "AWSManagedRulesAmazonIpReputationList"
      }
    }
    visibility_config {
      cloudwatch_metrics_enabled = true
      metric_name                = "${var.name}-reputation"
      sampled_requests_enabled   = false
    }
  }
  # 200 requests a second from one address, over five minutes.
  rule {
    name     = "rate"
    priority = 1
    action {
      block {}
    }
    statement {
      rate_based_statement {
        limit              = 60000
        aggregate_key_type = "IP"
      }
    }
    visibility_config {
      cloudwatch_metrics_enabled = true
      metric_name                = "${var.name}-rate"
      sampled_requests_enabled   = false
    }
  }
  visibility_config {
    cloudwatch_metrics_enabled = true
    metric_name                = var.name
    sampled_requests_enabled   = false
  }
}

locals {
  watcher_domain = "watcher.${var.domain}"
}

resource "aws_route53_record" "front" {
  for_each = toset(["A", "AAAA"])
  zone_id  = var.zone_id
  name     = var.domain
  type     = each.key
  alias {
    name                   = aws_cloudfront_distribution.front.domain_name
    zone_id                = aws_cloudfront_distribution.front.hosted_zone_id
    evaluate_target_health = false
  }
}

resource "aws_acm_certificate" "front" {
  provider          = aws.front
  domain_name       = var.domain
  validation_method = "DNS"
  lifecycle {
    create_before_destroy = true
  }
}

# The load balancer's: CloudFront believes only certificates of public authorities.
resource "aws_acm_certificate" "watcher" {
  domain_name       = local.watcher_domain
  validation_method = "DNS"
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_route53_record" "validation" {
  for_each = {
    front   = one(aws_acm_certificate.front.domain_validation_options)
    watcher = one(aws_acm_certificate.watcher.domain_validation_options)
  }
  zone_id         = var.zone_id
  name            = each.value.resource_record_name
  type            = each.value.resource_record_type
  ttl             = 300
  records         = [each.value.resource_record_value]
  allow_overwrite = true
}

resource "aws_acm_certificate_validation" "front" {
  provider                = aws.front
  certificate_arn         = aws_acm_certificate.front.arn
  validation_record_fqdns = [aws_route53_record.validation["front"].fqdn]
}

resource "aws_acm_certificate_validation" "watcher" {
  certificate_arn         = aws_acm_certificate.watcher.arn
  validation_record_fqdns = [aws_route53_record.validation["watcher"].fqdn]
}
